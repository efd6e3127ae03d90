import pytest

from outrider.engine.draft_pace import DraftPace
from outrider.wire.draft_budget import PLAIN, Budget

LARGE = Budget(steps=15, topk=1, nodes=16)


def steps_after(*rounds):
    pace = DraftPace()
    for drafted, num_accepted in rounds:
        pace.within(LARGE)
        pace.note_round(drafted=drafted, num_accepted=num_accepted, most=15)
    return pace.within(LARGE).steps


@pytest.mark.parametrize(
    ("rounds", "steps"),
    [
        ([], 3),
        ([(3, 3)], 7),
        ([(3, 3), (7, 7)], 15),
        ([(3, 3), (7, 7), (15, 15)], 15),  # the budget bounds it
        ([(3, 3), (7, 7), (15, 7)], 7),
        ([(3, 3), (7, 5)], 7),  # mostly kept: neither further nor less far
        ([(3, 3), (0, 0)], 3),  # nothing found
        ([(3, 0), (3, 0)], 3),  # never less than what is free
    ],
)
def test_drafts_reach_as_far_as_they_are_kept(rounds, steps):
    assert steps_after(*rounds) == steps


def test_success_beyond_the_budget_is_not_hoarded():
    pace = DraftPace()
    for _ in range(10):
        pace.within(LARGE)
        pace.note_round(drafted=15, num_accepted=15, most=15)
    pace.within(LARGE)
    pace.note_round(drafted=15, num_accepted=0, most=15)
    assert pace.within(LARGE).steps == 7


@pytest.mark.parametrize(
    ("budget", "drafted"),
    [(PLAIN, 0), (Budget(steps=1, topk=1, nodes=2), 1)],
)
def test_steps_in_which_the_batch_drafts_little_change_nothing(budget, drafted):
    """Those with prompts beside them, and trials of plain decoding."""
    pace = DraftPace()
    for num in (3, 7):
        pace.within(LARGE)
        pace.note_round(drafted=num, num_accepted=num, most=num)
    for _ in range(5):
        pace.within(budget)
        pace.note_round(drafted=drafted, num_accepted=drafted, most=drafted)
    assert pace.within(LARGE).steps == 15


@pytest.mark.parametrize("budget", [PLAIN, Budget(steps=1, topk=2, nodes=2)])
def test_a_smaller_budget_is_never_exceeded(budget):
    assert DraftPace().within(budget) == budget


def test_a_tree_is_checked_at_the_cost_of_a_chain_of_its_depth():
    assert DraftPace().within(Budget(steps=9, topk=2, nodes=19)) == Budget(steps=3, topk=2, nodes=4)
