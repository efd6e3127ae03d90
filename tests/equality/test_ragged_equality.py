"""Rows with budgets of their own share the query tokens of a step, and no token changes."""

import pytest
from support.matrix import CHAINS_ONLY, DRAFTERS, mismatches, run_case, some_cases, with_own_budgets

from outrider.runtime.runner import Runner

CASES = [
    with_own_budgets(case, seed)
    for seed, case in enumerate(some_cases(48, seed=5, drafters=(*DRAFTERS[1:], *CHAINS_ONLY)))
]


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_with_budgets_of_their_own_give_the_reference_tokens(targets, case):
    assert not mismatches(targets[case.target], case)


def test_a_row_that_drafts_less_leaves_its_query_tokens_out(targets, monkeypatch):
    """The largest tree of a step does not decide how much runs."""
    seen, launch = [], Runner._launch

    def watch(self, plan):
        seen.append(plan.shape)
        return launch(self, plan)

    monkeypatch.setattr(Runner, "_launch", watch)
    case = next(each for each in CASES if len({b.nodes for b in each.budgets}) > 2)
    run_case(targets[case.target], case)
    ragged = [shape for shape in seen if shape.ragged]
    assert ragged
    assert all(shape.num_decode_query < shape.num_nodes for shape in ragged)
