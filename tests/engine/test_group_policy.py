"""Ranks whose steps run together draft by one policy, which learns from whole steps."""

import random

from support.card_prices import step_ms

from outrider.engine.adaptive.adaptation import Adaptation
from outrider.engine.draft_policy import StepLoad, WholeBudget
from outrider.engine.group_policy import GroupPolicy, MemberPolicy
from outrider.wire.draft_budget import PLAIN, Budget, whole_rung

CHAIN = Budget(steps=4, topk=1, nodes=5)


class Recording(WholeBudget):
    def __init__(self):
        self.asked, self.settled, self.noted = [], [], []

    def choose(self, step, *, num_rows, num_prompt):
        self.asked.append((step, num_rows, num_prompt))
        return whole_rung(CHAIN)

    def settle(self, step, load):
        self.settled.append((step, load))

    def note(self, step, *, seconds, emitted_per_row):
        self.noted.append((step, seconds, emitted_per_row))


def members_of(policy, num):
    group = GroupPolicy(policy, num)
    return [MemberPolicy(group, rank) for rank in range(num)]


def load(rows, query, prompt=0):
    return StepLoad(num_rows=rows, num_query=query, num_prompt=prompt)


def test_a_step_is_decided_once_by_the_widest_rank():
    policy = Recording()
    first, second = members_of(policy, 2)
    assert first.choose(1, num_rows=3, num_prompt=0) is second.choose(1, num_rows=9, num_prompt=5)
    first.settle(1, load(3, 15))
    second.settle(1, load(9, 45, 5))
    first.choose(2, num_rows=4, num_prompt=0)
    assert policy.asked == [(1, 3, 0), (2, 9, 5)]
    assert policy.settled == [(1, load(9, 45, 5))]


def test_a_step_counts_when_all_ranks_have_told_of_it():
    policy = Recording()
    first, second = members_of(policy, 2)
    for step in (1, 2):
        first.settle(step, load(1, 5))
        second.settle(step, load(3, 15))
    for step, seconds in ((1, 0.5), (2, 0.25)):
        first.note(step, seconds=seconds, emitted_per_row=4.0)
        assert len(policy.noted) == step - 1
        second.note(step, seconds=seconds / 2, emitted_per_row=2.0)
    assert policy.noted == [(1, 0.5, 2.5), (2, 0.25, 2.5)]


def test_ranks_without_rows_and_steps_that_failed_leave_nothing_behind():
    policy = Recording()
    first, second = members_of(policy, 2)
    for step in range(1, 9):  # only the last of them has a result
        first.settle(step, load(0, 0))
        second.settle(step, load(0, 0, 7 * (step % 2 == 0)))
    assert [step for step, each in policy.settled if each.num_prompt] == [2, 4, 6, 8]
    for rank in (first, second):
        rank.note(8, seconds=1.0, emitted_per_row=0.0)
        rank.note(7, seconds=1.0, emitted_per_row=0.0)
    assert policy.noted == [(8, 1.0, 0.0)]
    assert not first._group._steps


def rate(rows, budget, accepted):
    """Tokens of all rows in a second."""
    return sum(rows) * mean_emitted(budget, accepted) / seconds(rows, budget.nodes)


def seconds(rows, nodes):
    return step_ms(
        rows=max(rows),
        tokens=max(rows) * nodes,
        prompt=0,
        draft_steps=nodes - 1,
        has_head=True,
    )


def mean_emitted(budget, accepted):
    return sum(accepted**depth for depth in range(budget.most_emitted))


def run(ranks, rows, rng):
    """Text that becomes hard; tokens per second of the last 4,000 steps."""
    tokens, took = 0.0, 0.0
    for step in range(10_000):
        accepted = 0.85 if step < 3000 else 0.25
        trees = [
            own.choose(step, num_rows=num, num_prompt=0).tree
            for own, num in zip(ranks, rows, strict=True)
        ]
        own_s = seconds(rows, max(tree.nodes for tree in trees))
        for own, num, tree in zip(ranks, rows, trees, strict=True):
            own.settle(step, load(num, num * tree.nodes))
        for own, tree in zip(ranks, trees, strict=True):
            emitted = mean_emitted(tree, accepted) * rng.gauss(1.0, 0.02)
            own.note(step, seconds=own_s * rng.gauss(1.0, 0.02), emitted_per_row=emitted)
        if step >= 6000:
            took += own_s
            tokens += sum(
                num * mean_emitted(tree, accepted) for num, tree in zip(rows, trees, strict=True)
            )
    return tokens / took


def test_ranks_find_out_together_that_drafts_do_not_pay_any_more():
    """With a policy each they go on drafting, at 0.65 to 0.82 of plain decoding."""
    rows = (128, 100)
    plain, rng = rate(rows, PLAIN, 0.25), random.Random(5)
    assert run(members_of(Adaptation(CHAIN), 2), rows, rng) > 0.97 * plain
