"""The n-gram drafter against hand-made texts and against a slow search that shares no code."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.steps import NO_FLAGS, small_device

from outrider.ops.tree.draft_tree import DraftTree, StepOutcome, VerifyResult
from outrider.ops.tree.find_occurrences import NgramMatch
from outrider.spec.choose_tree import TreeChooser
from outrider.spec.ngram_drafter import NgramDrafter
from outrider.spec.text_lookup import TextLookup
from outrider.spec.text_table import PredictionTable, TextTable
from outrider.step.fill_plan import resolve_lengths
from outrider.wire.draft_budget import Budget
from outrider.wire.row_sampling import RowSampling
from outrider.wire.runner_facts import DraftFacts
from outrider.wire.scheduled_batch import (
    RowAdmission,
    ScheduledBatch,
    ScheduledChunk,
    ScheduledDecodes,
)

CHAIN = Budget(steps=3, topk=1, nodes=4)
TREE = Budget(steps=3, topk=3, nodes=12)
PAGE = 4
MATCH = NgramMatch(least=2, most=3)


class Scene:
    """Rows 1, 2, ... with a text each, of which the last token is not cached yet."""

    def __init__(self, *texts, match=MATCH, pad=1):
        self.device = small_device(random.Random(0), page_size=PAGE, nodes=12, pad=pad, reach=60)
        facts = DraftFacts(
            budget=TREE,
            lead=0,
            lookahead=0,
            needs_text=True,
            is_paced=True,
            is_adaptive=False,
            is_ranked=False,
        )
        text = TextTable(rows=6, reach=80, device=torch.device("cpu"))
        lookup = TextLookup(
            text=text,
            predictions=PredictionTable(rows=6, width=8, tail=4, device=torch.device("cpu")),
            match=match,
            page_size=PAGE,
        )
        chooser = TreeChooser(torch.device("cpu"))
        self.text, self.drafter = text, NgramDrafter(facts, lookup=lookup, chooser=chooser)
        for row, tokens in enumerate(texts, start=1):
            self.admit(row, tokens)
            self.device.table.lengths[row] = len(tokens) - 1
            self.device.table.last_tokens[row] = tokens[-1]

    def admit(self, row, prompt, output=()):
        sampling = RowSampling(seed=0)
        self.drafter.admit(
            [RowAdmission(row=row, sampling=sampling, prompt=tuple(prompt), output=tuple(output))]
        )

    def plan(self, *budgets, chunks=()):
        lengths = self.device.table.lengths
        rows = tuple(range(1, 1 + len(budgets)))
        bounds = tuple(int(lengths[row]) + 2 for row in rows)
        decodes = ScheduledDecodes(rows=rows, bounds=bounds, budgets=budgets, most_drafts=99)
        batch = ScheduledBatch(step=1, admissions=(), grants=(), chunks=chunks, decodes=decodes)
        plan = self.device.planner.plan(batch, sampling_flags=NO_FLAGS)
        resolve_lengths(plan, self.device.table)
        return plan

    def propose(self, *budgets) -> list[list[tuple[int, ...]]]:
        """For each row the path to each of its drafts, as tokens."""
        tree = self.drafter.propose(self.plan(*budgets), self.device.table)
        return [paths(tree, row) for row in range(len(budgets))]


def paths(tree: DraftTree, row: int) -> list[tuple[int, ...]]:
    """Read the tree by its parent pointers; the other fields must agree with them."""
    tokens, parents = tree.tokens[row].tolist(), tree.parents[row].tolist()
    found: dict[int, tuple[int, ...]] = {0: ()}
    for node in range(1, len(tokens)):
        if tokens[node] >= 0:
            found[node] = (*found[parents[node]], tokens[node])
            assert tree.depths[row, node] == len(found[node])
            above = int(tree.ancestors[row, parents[node]])
            assert tree.ancestors[row, node] == above | 1 << node
    return list(found.values())[1:]


def test_the_longest_match_wins_over_a_later_one():
    assert Scene([1, 2, 3, 9, 9, 4, 2, 3, 8, 1, 2, 3]).propose(CHAIN) == [[(9,), (9, 9), (9, 9, 4)]]


def test_one_longer_match_wins_over_many_shorter_ones():
    shorter = [4, 2, 3, 8, 5, 2, 3, 8, 6, 2, 3, 8]
    assert Scene([1, 2, 3, 9, *shorter, 1, 2, 3]).propose(CHAIN)[0][0] == (9,)


def test_of_equally_long_matches_the_more_frequent_continuation_wins():
    text = [4, 2, 3, 9, 5, 2, 3, 9, 6, 2, 3, 8, 1, 2, 3]
    assert Scene(text).propose(CHAIN) == [[(9,), (9, 6), (9, 6, 2)]]


def test_of_equally_frequent_continuations_the_latest_wins():
    assert Scene([2, 3, 8, 4, 2, 3, 9, 5, 2, 3]).propose(CHAIN) == [[(9,), (9, 5), (9, 5, 2)]]


def test_tokens_past_the_longest_compared_match_do_not_count():
    text = [1, 2, 3, 8, 4, 2, 3, 9, 5, 1, 2, 3]
    assert Scene(text, match=NgramMatch(least=1, most=2)).propose(CHAIN)[0][0] == (9,)


def test_a_match_that_is_too_short_proposes_nothing():
    text = [1, 3, 8, 2, 3]
    assert Scene(text).propose(CHAIN) == [[]]
    assert Scene(text, match=NgramMatch(least=1, most=3)).propose(CHAIN)[0][0] == (8,)


@pytest.mark.parametrize("text", [[4], [4, 5], [4, 5, 6, 7]])
def test_a_text_without_repetition_proposes_nothing(text):
    assert Scene(text).propose(TREE) == [[]]


def test_the_end_of_the_text_is_no_occurrence_of_itself():
    assert Scene([1, 2]).propose(CHAIN) == [[]]


def test_a_period_shorter_than_the_round_is_repeated():
    assert Scene([7, 7, 7]).propose(CHAIN) == [[(7,), (7, 7), (7, 7, 7)]]
    assert Scene([1, 5, 6, 5, 6, 5, 6]).propose(CHAIN) == [[(5,), (5, 6), (5, 6, 5)]]


def test_continuations_that_compete_make_a_tree_without_equal_siblings():
    text = [2, 3, 8, 1, 2, 3, 9, 4, 2, 3, 9, 5, 2, 3]
    assert sorted(Scene(text).propose(TREE)[0]) == [
        (8,),
        (8, 1),
        (8, 1, 2),
        (9,),  # of two occurrences, which part after it
        (9, 4),
        (9, 4, 2),
        (9, 5),
        (9, 5, 2),
    ]


def test_a_small_tree_keeps_the_most_likely_branches():
    text = [2, 3, 8, 1, 2, 3, 9, 4, 2, 3, 9, 5, 2, 3]
    assert Scene(text).propose(Budget(steps=3, topk=3, nodes=4)) == [[(9,), (8,), (9, 5)]]


def test_rows_with_different_budgets_share_a_batch():
    text = [2, 3, 8, 1, 2, 3, 9, 4, 2, 3, 9, 5, 2, 3]
    budgets = [
        TREE,
        Budget(steps=2, topk=1, nodes=12),
        Budget(steps=1, topk=3, nodes=12),
        Budget(steps=3, topk=3, nodes=3),
        Budget(),
    ]
    together = Scene(*[text] * 5).propose(*budgets)
    assert together[1:] == [[(9,), (9, 5)], [(9,), (8,)], [(9,), (8,)], []]
    for budget, drafts in zip(budgets, together, strict=True):
        assert Scene(text).propose(budget) == [drafts]


def test_rows_do_not_see_each_others_text():
    known, unknown = [5, 6, 7, 5, 6], [8, 9, 1, 2]
    assert Scene(known, unknown, known, pad=4).propose(CHAIN, CHAIN, CHAIN)[1] == []


def test_a_row_forgets_its_former_owner():
    scene = Scene([5, 6, 7, 5, 6, 7, 5, 6])
    scene.admit(1, [1, 2, 5, 6])
    scene.device.table.lengths[1] = 3
    assert scene.propose(CHAIN) == [[]]


def test_a_preempted_request_brings_its_output_along():
    scene = Scene([9])
    scene.admit(1, prompt=[1, 2, 3], output=[4, 1, 2])
    scene.device.table.lengths[1] = 5
    assert scene.propose(CHAIN) == [[(3,), (3, 4), (3, 4, 1)]]


def test_emitted_tokens_become_text():
    scene = Scene([1, 2, 3, 4])
    plan = scene.plan(CHAIN)
    emitted = torch.tensor([[1, 2, 2, 2]])  # one accepted draft, then the bonus token, then nothing
    scene.drafter.observe(plan, outcome_of(emitted, num_accepted=1), scene.device.table)
    scene.device.table.lengths[1] += 2
    assert scene.propose(CHAIN) == [[(3,), (3, 4), (3, 4, 1)]]


@pytest.mark.parametrize(("follower", "expected"), [(-1, (6,)), (3, (3,))])
def test_the_token_after_a_chunk_is_chosen_only_at_the_end_of_the_prompt(follower, expected):
    prompt = [1, 2, 3, 1, 2] if follower < 0 else [1, 2, 3, 1, 2, 3, 1, 2]
    scene = Scene([9], prompt)
    chunk = ScheduledChunk(row=2, start=0, tokens=tuple(prompt[:5]), follower=follower)
    plan = scene.plan(CHAIN, chunks=(chunk,))
    outcome = outcome_of(torch.full((1, 4), 9), num_accepted=0, chunk_choice=torch.tensor([6]))
    scene.drafter.observe(plan, outcome, scene.device.table)
    text = scene.text.read(torch.tensor([2]), 8)[0].tolist()
    assert tuple(text[5:6]) == expected


def outcome_of(emitted, *, num_accepted, chunk_choice=None) -> StepOutcome:
    verify_result = VerifyResult(
        path=torch.zeros_like(emitted),
        num_accepted=torch.tensor([num_accepted]),
        emitted=emitted,
        drafted=torch.tensor([3]),
    )
    choice = torch.zeros(0, dtype=torch.int64) if chunk_choice is None else chunk_choice
    return StepOutcome(
        aux_hidden_states=torch.zeros(0, 0),
        node_queries=torch.zeros_like(emitted),
        verify_result=verify_result,
        chunk_choice=choice,
    )


def slow_search(text: list[int], match: NgramMatch) -> list[tuple[int, int]]:
    """Earlier occurrences of the last tokens, best first: how many agree, and where it ends."""

    def num_equal(end):
        num = 0
        while num < match.most and end - num >= 0 and text[end - num] == text[-1 - num]:
            num += 1
        return num

    found = [(num_equal(end), end) for end in range(len(text) - 1)]
    return sorted((entry for entry in found if entry[0] >= match.least), reverse=True)[:8]


def slow_tree(text: list[int], match: NgramMatch, budget: Budget) -> list[tuple[int, ...]]:
    """Every path with the occurrences that begin with it, pruned to the budget."""
    occurrences = slow_search(text, match)
    users: dict[tuple[int, ...], list[int]] = {}
    for order, (_, end) in enumerate(occurrences):
        longer = list(text)
        for i in range(budget.steps):
            longer.append(longer[end + 1 + i])
            users.setdefault(tuple(longer[len(text) :]), []).append(order)

    def score(path):
        weight = sum(8.0 ** occurrences[order][0] for order in users[path])
        return math.log(weight) + math.log(0.8) * len(path) - 1e-5 * users[path][0]

    allowed: list[tuple[int, ...]] = [()]
    for path in sorted(users, key=lambda path: (len(path), -score(path))):
        siblings = [other for other in allowed[1:] if other[:-1] == path[:-1]]
        if path[:-1] in allowed and len(siblings) < budget.topk:
            allowed.append(path)
    return sorted(sorted(allowed[1:], key=score, reverse=True)[: budget.nodes - 1])


budgets = st.builds(
    Budget, steps=st.integers(1, 5), topk=st.integers(1, 4), nodes=st.integers(2, 12)
)
texts = st.lists(st.integers(1, 3), min_size=1, max_size=40)


@settings(max_examples=150, deadline=None)
@given(texts=st.lists(st.tuples(texts, budgets), min_size=1, max_size=3), least=st.integers(1, 3))
def test_any_batch_gets_the_trees_of_a_slow_search(texts, least):
    match = NgramMatch(least=least, most=4)
    scene = Scene(*[text for text, _ in texts], match=match, pad=2)
    drafts = scene.propose(*[budget for _, budget in texts])
    for (text, budget), found in zip(texts, drafts, strict=True):
        assert sorted(found) == slow_tree(text, match, budget)
        assert len(set(found)) == len(found), "equal siblings"
