import pytest

from outrider.step.buckets import Buckets
from outrider.step.shape import SamplingFlags
from outrider.step.step_sizes import sizes_of
from outrider.wire.draft_budget import PLAIN, UNBOUNDED, Budget
from outrider.wire.scheduled_batch import ScheduledBatch, ScheduledDecodes

ENGINE = Budget(steps=8, topk=4, nodes=64)


@pytest.mark.parametrize(
    ("asked", "used"),
    [
        (UNBOUNDED, ENGINE),
        (PLAIN, PLAIN),
        (Budget(steps=1, topk=1, nodes=64), Budget(steps=1, topk=1, nodes=2)),
        (Budget(steps=63, topk=64, nodes=2), Budget(steps=1, topk=4, nodes=2)),
        (Budget(steps=2, topk=2, nodes=64), Budget(steps=2, topk=2, nodes=7)),
        (Budget(steps=0, topk=4, nodes=9), PLAIN.within(Budget(steps=0, topk=4, nodes=9))),
    ],
)
def test_a_budget_holds_no_step_and_no_node_that_could_not_be_used(asked, used):
    assert asked.within(ENGINE).nodes == used.nodes
    assert asked.within(ENGINE).steps == used.steps


def test_a_batch_of_different_budgets_reads_as_far_as_its_common_tree_writes():
    budgets = [Budget(steps=8, topk=1, nodes=9), Budget(steps=2, topk=8, nodes=16)]
    batch = ScheduledBatch(
        step=1,
        admissions=(),
        grants=(),
        chunks=(),
        decodes=ScheduledDecodes(
            rows=tuple(range(len(budgets))),
            bounds=(100,) * len(budgets),
            budgets=tuple(budgets),
            most_drafts=23,
        ),
    )
    shape = Buckets(page_size=1, lead=1).fit(sizes_of(batch), sampling_flags=SamplingFlags())
    assert shape.tree == Budget(steps=8, topk=8, nodes=16)
    assert shape.pages == 100 + 1 + 7 * 8  # every branch of all steps but the last
