"""What steps cost: prompts, unmeasured budgets, and steps that something else made slow."""

import itertools

import pytest

from outrider.engine.adaptive.adaptation import Adaptation
from outrider.engine.adaptive.batch_size import BatchSize
from outrider.engine.adaptive.recent_samples import UsualSeconds
from outrider.engine.adaptive.step_log import MeasuredStep
from outrider.engine.adaptive.trial import IMPOSSIBLE
from outrider.engine.draft_policy import StepLoad
from outrider.wire.draft_budget import PLAIN, Budget

CHAIN = Budget(steps=5, topk=1, nodes=6)


def sized(adaptation, *, seconds):
    """A batch of 4 rows, with the seconds of some rungs."""
    size = BatchSize(len(adaptation.ladder), num_rows=4, chosen=0, first_trial=0)
    for rung, each in seconds.items():
        size.note(step_of(rung, each))
    return size


def step_of(rung, seconds):
    """A step of 4 rows that belongs to no trial."""
    return MeasuredStep(
        rung=rung,
        trial=None,
        load=StepLoad(num_rows=4, num_query=4, num_prompt=0),
        stands_for=1,
        alone_s=seconds,
        emitted=1.0,
    )


def test_a_budget_that_was_not_measured_lies_on_the_line_through_those_that_were():
    adaptation = Adaptation(CHAIN)
    last, nodes = len(adaptation.ladder) - 1, adaptation.ladder[1].nodes
    size = sized(adaptation, seconds={0: 1.0, 1: 1.0 + 0.3 * (nodes - 1)})
    expected_s = adaptation._prices.expected_s(size, adaptation.ladder, last)
    assert expected_s == pytest.approx(1.0 + 0.3 * 5)


def test_a_trial_ends_with_the_first_step_that_costs_more_than_drafts_can_gain():
    adaptation, used = Adaptation(CHAIN), []
    for step in range(600):
        budget = adaptation.choose(step, num_rows=1, num_prompt=0).tree
        adaptation.settle(step, StepLoad(num_rows=1, num_query=budget.nodes, num_prompt=0))
        seconds = 1.0 if budget == PLAIN else 10.0
        adaptation.note(step, seconds=seconds, emitted_per_row=1.0)
        used.append(budget != PLAIN)
    trials = used[100:]
    assert any(trials)
    assert not any(one and after for one, after in itertools.pairwise(trials))


def test_a_plain_step_that_takes_longer_than_drafts_is_not_measured():
    size = sized(Adaptation(CHAIN), seconds={1: 1.0, 0: 5.0})
    assert not size.costs[0].is_known
    size.note(step_of(0, 0.9))
    assert size.costs[0].usual == 0.9


def test_the_usual_seconds_are_the_lower_quartile_of_the_last_steps():
    usual, seen = UsualSeconds(), []
    for seconds in (8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0):
        usual.note(seconds)
        seen.append(usual.usual)
    assert seen == [8.0, 7.0, 6.0, 5.0, 5.0, 4.0, 3.0, 2.0]


def test_a_budget_that_was_measured_promises_what_it_gained_and_one_more_round():
    adaptation = Adaptation(CHAIN)
    last = len(adaptation.ladder) - 1
    adaptation._gains.note(last, 2.0, num_rows=8)
    assert adaptation._gains.most(last) == pytest.approx(2.0 + 1 / 8)


def test_a_trial_leaves_out_steps_that_are_much_slower_than_the_chosen_budget():
    adaptation = Adaptation(CHAIN)
    last = len(adaptation.ladder) - 1
    size = sized(adaptation, seconds={last: 0.5})
    size.chosen, size.num_steps = last, 1000
    adaptation._next_trial.begin(size)  # plain decoding, whose steps are not longer
    assert (size.trial.rung, size.trial.most_s) == (0, pytest.approx(IMPOSSIBLE * 0.5))
