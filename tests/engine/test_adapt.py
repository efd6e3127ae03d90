"""Budgets follow what steps cost and drafts gain, by a clock that the test owns."""

import pytest

from outrider.engine.adaptive.adaptation import Adaptation
from outrider.engine.draft_policy import StepLoad, WholeBudget
from outrider.wire.draft_budget import (
    PLAIN,
    PLAIN_RUNG,
    UNBOUNDED,
    Budget,
    draft_levels,
    ladder_of,
    whole_rung,
)

CHAIN = Budget(steps=4, topk=1, nodes=5)
TREE = Budget(steps=5, topk=4, nodes=17)


class World:
    """A machine and a text: seconds of a step by its query tokens, tokens a round by its budget."""

    def __init__(self, adaptation, *, seconds, keep_rate):
        self.adaptation, self.seconds, self.keep_rate = adaptation, seconds, keep_rate
        self.step = 0

    def read_prompt(self, num_tokens):
        """A step of one prompt alone, as the first one of every engine is."""
        self.step += 1
        self.adaptation.settle(self.step, StepLoad(num_rows=0, num_query=0, num_prompt=num_tokens))
        self.adaptation.note(self.step, seconds=self.seconds(num_tokens), emitted_per_row=0.0)

    def run(self, rows, steps, prompt=0):
        """The budgets of so many steps, which also read so many tokens of prompts."""
        used = []
        for _ in range(steps):
            self.step += 1
            size = {"num_rows": rows, "num_prompt": prompt}
            budget = self.adaptation.choose(self.step, **size).tree
            load = StepLoad(num_query=rows * budget.nodes, **size)
            self.adaptation.settle(self.step, load)
            used.append(budget)
            emitted = sum(self.keep_rate**depth for depth in range(budget.most_emitted))
            self.adaptation.note(
                self.step,
                seconds=self.seconds(rows * budget.nodes + prompt),
                emitted_per_row=emitted,
            )
        return used


def settled(used):
    """What most of the last steps used; now and then another budget is tried."""
    return max(set(used[-200:]), key=used[-200:].count)


def free_up_to(tokens):
    return lambda query: max(1.0, query / tokens)


def test_the_ladder_leads_from_plain_to_the_whole_budget():
    chain, tree = ladder_of(CHAIN, is_shared=False), ladder_of(TREE, is_shared=False)
    assert [rung.tree.nodes for rung in chain] == [1, 2, 3, 5]
    assert chain[0] == PLAIN_RUNG
    assert chain[-1] == whole_rung(CHAIN)
    assert tree[-1] == whole_rung(TREE)
    nodes = [rung.nodes for rung in tree]
    assert nodes == sorted(set(nodes))
    short = Budget(steps=1, topk=1, nodes=2)
    assert ladder_of(short, is_shared=True) == (PLAIN_RUNG, whole_rung(short))


@pytest.mark.parametrize("budget", [CHAIN, TREE, Budget(steps=3, topk=1, nodes=4)])
def test_rows_that_share_drafts_grow_larger_trees_for_half_of_them(budget):
    alone, shared = (ladder_of(budget, is_shared=is_shared) for is_shared in (False, True))
    [rung] = [each for each in shared if each.is_shared]
    half, larger = alone[-2].tree, rung.tree
    assert rung.nodes == half.nodes  # as many query tokens
    assert half.steps < larger.steps <= min(budget.steps, 1 + 1.5 * half.steps)
    assert half.nodes < larger.nodes <= min(budget.nodes, 1 + 1.5 * half.nodes)
    assert shared == (*alone[:-1], rung, alone[-1])


@pytest.mark.parametrize("nodes", range(2, 65))
def test_a_bucket_has_exactly_the_drafts_of_every_rung(nodes):
    """Otherwise a step would run more query tokens than its rung has."""
    for topk in (1, 4):
        for rung in ladder_of(Budget(steps=nodes - 1, topk=topk, nodes=nodes), is_shared=True):
            assert rung.drafts in draft_levels(rung.tree.nodes - 1)


@pytest.mark.parametrize(
    ("keep_rate", "tokens", "rows", "best"),
    [
        (0.8, 64, 1, CHAIN),  # checking is free and drafts are good
        (0.8, 64, 8, CHAIN),
        (0.1, 8, 8, PLAIN),  # every draft costs as much as a row, and few are kept
        (0.0, 8, 4, PLAIN),
        (0.9, 8, 64, PLAIN),  # even good drafts lose where five rows cost five times as much as one
    ],
)
def test_a_batch_settles_on_the_fastest_budget(keep_rate, tokens, rows, best):
    used = World(Adaptation(CHAIN), seconds=free_up_to(tokens), keep_rate=keep_rate).run(rows, 600)
    assert settled(used) == best


def test_sizes_of_batch_are_judged_apart():
    world = World(Adaptation(CHAIN), seconds=free_up_to(16), keep_rate=0.6)
    assert settled(world.run(1, 600)) == CHAIN
    assert settled(world.run(64, 600)) == PLAIN
    assert settled(world.run(1, 300)) == CHAIN


def test_a_text_that_becomes_easy_is_noticed():
    world = World(Adaptation(CHAIN), seconds=free_up_to(8), keep_rate=0.0)
    assert settled(world.run(4, 600)) == PLAIN
    world.keep_rate = 1.0
    world.seconds = free_up_to(64)
    assert settled(world.run(4, 4000)) == CHAIN


def test_most_steps_use_the_best_budget_and_the_first_ones_draft():
    used = World(Adaptation(CHAIN), seconds=free_up_to(64), keep_rate=0.7).run(1, 1000)
    assert used[:8] == [CHAIN] * 8
    assert used.count(CHAIN) > 970


@pytest.mark.parametrize(("prompt", "is_drafting"), [(0, True), (20, True), (500, False)])
def test_batches_beside_prompts_are_judged_apart(prompt, is_drafting):
    """Drafts that are seldom accepted pay while they are free: not beside many tokens."""
    world = World(Adaptation(CHAIN), seconds=free_up_to(200), keep_rate=0.2)
    assert settled(world.run(32, 600)) != PLAIN
    assert (settled(world.run(32, 600, prompt)) != PLAIN) == is_drafting
    assert settled(world.run(32, 600)) != PLAIN


def test_steps_without_rows_teach_nothing():
    adaptation = Adaptation(CHAIN)
    adaptation.choose(1, num_rows=4, num_prompt=0)
    adaptation.settle(1, StepLoad(num_rows=0, num_query=0, num_prompt=30))
    adaptation.note(1, seconds=9.0, emitted_per_row=1.0)
    assert not adaptation._gains.are_known


def test_rows_that_are_met_for_the_first_time_begin_plainly_where_prompt_tokens_are_dear():
    world = World(Adaptation(CHAIN), seconds=lambda query: float(query), keep_rate=0.5)
    world.read_prompt(100)
    assert settled(world.run(32, 600)) == PLAIN
    assert world.run(32, 8, prompt=100) == [PLAIN] * 8
    assert world.run(1, 2, prompt=100) == [PLAIN] * 2  # a draft costs as much as a row


def test_steps_that_fell_are_not_remembered():
    adaptation = Adaptation(CHAIN)
    for step in range(1, 50):
        adaptation.choose(step, num_rows=4, num_prompt=0)
        adaptation.settle(step, StepLoad(num_rows=4, num_query=20, num_prompt=0))
    adaptation.note(49, seconds=1.0, emitted_per_row=1.0)
    assert not len(adaptation._log)


def test_empty_steps_are_not_remembered():
    """A scheduler that waits decides empty steps, which are never run."""
    adaptation = Adaptation(CHAIN)
    for step in range(1, 50):
        adaptation.settle(step, StepLoad(num_rows=0, num_query=0, num_prompt=0))
    assert not len(adaptation._log)


def test_a_step_that_takes_long_once_changes_nothing():
    """The first step of a shape records it, which takes as long as a hundred others."""
    world = World(Adaptation(CHAIN), seconds=free_up_to(64), keep_rate=0.7)
    assert settled(world.run(1, 1000)) == CHAIN
    usual, world.seconds = world.seconds, lambda query: 100.0
    world.run(1, 1)
    world.seconds = usual
    assert world.run(1, 250).count(CHAIN) > 240


def test_a_text_that_is_hard_for_a_while_does_not_end_drafting():
    world = World(Adaptation(CHAIN), seconds=lambda query: 1 + query / 10, keep_rate=0.9)
    assert settled(world.run(1, 3000)) == CHAIN
    world.keep_rate = 0.0
    assert settled(world.run(1, 1000)) == PLAIN
    world.keep_rate = 0.9
    assert settled(world.run(1, 3000)) == CHAIN


def test_without_adaptation_every_row_drafts_as_far_as_it_may():
    assert WholeBudget().choose(1, num_rows=500, num_prompt=0) == whole_rung(UNBOUNDED)


def test_a_text_that_becomes_easy_beside_prompts_is_noticed():
    """A hard text was measured before, and every step since has read prompts."""
    world = World(Adaptation(CHAIN), seconds=lambda query: 5 + query / 60, keep_rate=0.6)
    world.run(16, 600)
    world.keep_rate = 0.1
    assert settled(world.run(16, 1500, prompt=300)) == PLAIN
    world.keep_rate = 1.0
    assert settled(world.run(16, 3000, prompt=300)) != PLAIN


def test_sharing_is_not_used_before_it_was_tried():
    """It promises more tokens for as many query tokens, which only a trial can show."""
    adaptation = Adaptation(CHAIN, is_shared=True)
    world = World(adaptation, seconds=free_up_to(200), keep_rate=0.8)
    shared = {rung.tree for rung in adaptation.ladder if rung.is_shared}
    world.run(8, 100)
    assert not shared & set(world.run(12, 100))  # rows that are met for the first time
    assert not shared & set(world.run(8, 100, prompt=250))


def test_batches_that_decode_plainly_measure_one_step_in_eight_until_a_trial_is_due():
    adaptation = Adaptation(CHAIN)
    world = World(adaptation, seconds=lambda query: float(query), keep_rate=0.0)
    world.run(4, 2000)
    size, measured = adaptation._sizes.of(4), 0
    while not size.is_at_rest():
        world.run(4, 1)
    for _ in range(40):
        before = size.costs[0]._last.copy()
        world.seconds = lambda query, extra=_: query + extra / 1000
        assert world.run(4, 1) == [PLAIN]
        measured += size.costs[0]._last != before
    assert measured == 5


def test_a_step_stands_in_the_trial_that_it_was_scheduled_for():
    """One that uses the rung on trial for another reason is no sample of it."""
    adaptation = Adaptation(CHAIN)
    size = adaptation._sizes.of(4)
    size.begin_trial(1, most_s=9.0)
    other = adaptation.choose(1, num_rows=4, num_prompt=0)
    assert other == adaptation.ladder[1]
    adaptation._log.decide(2, 1, None)
    for step in (1, 2):
        adaptation.settle(step, StepLoad(num_rows=4, num_query=8, num_prompt=0))
        adaptation.note(step, seconds=1.0, emitted_per_row=1.5)
    assert size.trial.num_samples == 1
    assert size.costs[1].num == 1
