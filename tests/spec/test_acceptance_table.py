"""Drafts are ranked by how often drafts like them were accepted, whatever the drafter thinks."""

import random
from dataclasses import replace

import pytest
import torch

from outrider.ops.tree.acceptance_table import (
    BINS,
    KINDS,
    NUM_ENTRIES,
    AcceptanceTable,
    calibrate_,
    count_accepted_,
    make_acceptance_table,
)
from outrider.ops.tree.candidates import Candidates, SelectedTree
from outrider.ops.tree.chain import chain
from outrider.ops.tree.select_nodes import select_nodes
from outrider.ops.tree.share_nodes import share_nodes
from outrider.ops.tree.verify import verify
from outrider.wire.draft_budget import Budget

STEPS = 4
BUDGET = Budget(steps=STEPS, topk=1, nodes=STEPS + 1)
CPU = torch.device("cpu")


def chains(rows: int, chance: float) -> Candidates:
    """A chain for each row; the drafter is as sure of every draft."""
    depth = torch.arange(STEPS).expand(rows, STEPS)
    scores = (depth + 1) * torch.tensor(chance).log()
    return Candidates(scores=scores.clone(), tokens=depth + 1, parents=(depth - 1).contiguous())


def all_nodes(rows: int) -> SelectedTree:
    tokens = torch.arange(STEPS + 1).repeat(rows, 1)
    return SelectedTree(tree=chain(tokens), numbers=tokens - 1)


def choices(tokens: torch.Tensor, num_right: list[int]) -> torch.Tensor:
    """What the target chooses if it agrees with the first drafts of each row."""
    choice = torch.zeros_like(tokens)
    for row, num in enumerate(num_right):
        choice[row, :num] = tokens[row, 1 : 1 + num]
    return choice


def test_a_draft_after_a_rejected_one_is_not_counted():
    table, candidates, selected = make_acceptance_table(CPU), chains(3, 0.8), all_nodes(3)
    entries = calibrate_(candidates, torch.zeros(3, STEPS).long(), table, steps=STEPS)
    result = verify(selected.tree, choices(selected.tree.tokens, [0, 1, 4]), STEPS + 1)
    count_accepted_(table, entries, selected, result.path)
    by_depth = [int(entries[0, depth]) for depth in range(STEPS)]
    assert table.tried[by_depth].tolist() == [3, 2, 1, 1]
    assert table.accepted[by_depth].tolist() == [2, 1, 1, 1]
    assert table.tried.sum() == 2 * 7  # by depth, and all depths together


def test_without_results_the_drafter_is_believed():
    sure, unsure = chains(1, 0.95), chains(1, 0.4)
    for candidates in (sure, unsure):
        calibrate_(
            candidates, torch.zeros(1, STEPS).long(), make_acceptance_table(CPU), steps=STEPS
        )
    assert sure.scores[0, 0].exp() == pytest.approx(0.95, abs=1 / BINS)
    assert unsure.scores[0, 0].exp() == pytest.approx(0.4, abs=1 / BINS)


@pytest.mark.parametrize("seed", range(8))
def test_a_child_scores_below_its_parent_whatever_was_measured(seed):
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    tried = 100 * torch.rand(NUM_ENTRIES, generator=generator)
    accepted = tried * torch.randint(0, 2, (NUM_ENTRIES,), generator=generator)
    candidates = chains(5, rng.choice([0.01, 0.5, 1.0]))
    kinds = torch.randint(0, KINDS, (5, STEPS), generator=generator)
    calibrate_(candidates, kinds, AcceptanceTable(tried=tried, accepted=accepted), steps=STEPS)
    assert (candidates.scores[:, 1:] < candidates.scores[:, :-1]).all()
    assert (candidates.scores < 0).all()


@pytest.mark.parametrize("seed", range(8))
def test_of_drafts_of_one_kind_and_depth_the_more_likely_one_is_never_behind(seed):
    """Also where few counts make a bin look worse than the one below it."""
    generator = torch.Generator().manual_seed(seed)
    tried = 3 * torch.rand(NUM_ENTRIES, generator=generator)
    accepted = tried * torch.randint(0, 2, (NUM_ENTRIES,), generator=generator)
    table = AcceptanceTable(tried=tried, accepted=accepted)
    scores = torch.linspace(0.01, 0.99, 99).log()[None]
    siblings = Candidates(
        scores=scores, tokens=torch.arange(99)[None], parents=torch.full((1, 99), -1)
    )
    calibrate_(siblings, torch.zeros(1, 99).long(), table, steps=1)
    assert (siblings.scores.diff() >= 0).all()


class Text:
    """Rows whose drafts are accepted by rates that the drafter does not know."""

    def __init__(self, rates: list[list[float]], *, seed: int = 0):
        self._rates, self._rng = rates, random.Random(seed)
        self.num_verified = self.num_emitted = 0

    def num_right(self) -> list[int]:
        counts = []
        for rates in self._rates:
            right = [self._rng.random() < rate for rate in rates]
            counts.append(right.index(False) if False in right else len(right))
        return counts

    def step(self, table: AcceptanceTable, kinds: torch.Tensor, num_drafts: int) -> torch.Tensor:
        """Share, verify and count; returns the nodes of each row."""
        rows = len(self._rates)
        candidates = chains(rows, 0.9)
        by_candidate = kinds[:, None].expand(-1, STEPS)
        entries = calibrate_(candidates, by_candidate, table, steps=STEPS)
        budgets = torch.tensor([STEPS, 1, STEPS + 1])[:, None].repeat(1, rows)
        shares = share_nodes(candidates, budgets, most=STEPS, num_drafts=num_drafts)
        selected = select_nodes(torch.zeros(rows).long(), candidates, shares, BUDGET)
        result = verify(selected.tree, choices(chain_tokens(rows), self.num_right()), STEPS + 1)
        count_accepted_(table, entries, selected, result.path)
        self.num_verified += rows + num_drafts
        self.num_emitted += int(result.num_accepted.sum()) + rows
        return shares[2]


def chain_tokens(rows: int) -> torch.Tensor:
    return torch.arange(STEPS + 1).repeat(rows, 1)


def test_drafts_of_a_depth_that_is_rarely_accepted_go_to_other_rows():
    """The drafter is as sure of its second draft as of its first, and wrong."""
    table, text = make_acceptance_table(CPU), Text([[0.9, 0.1, 0.1, 0.1]] * 8)
    kinds = torch.zeros(8).long()
    first = text.step(table, kinds, num_drafts=8)
    assert first.max() <= 3  # ties go to the first rows
    for _ in range(60):
        last = text.step(table, kinds, num_drafts=8)
    assert last.tolist() == [2] * 8


def test_rows_of_a_kind_that_is_easy_get_the_drafts_of_hard_rows():
    """Tokens for each verified node rise against as many drafts for every row."""
    rates = [[0.9] * STEPS] * 4 + [[0.2] * STEPS] * 4
    table, text = make_acceptance_table(CPU), Text(rates)
    kinds = torch.tensor([0] * 4 + [1] * 4)
    for _ in range(60):
        shares = text.step(table, kinds, num_drafts=16)
    assert shares.tolist() == [5] * 4 + [1] * 4
    alike = Text(rates)
    alike_emitted = sum(8 + sum(min(num, 2) for num in alike.num_right()) for _ in range(60))
    assert text.num_emitted / text.num_verified > 1.1 * alike_emitted / text.num_verified


def test_text_that_became_easy_is_found_again():
    """What is not tried is forgotten, so drafts that lost are tried after some time."""
    table = make_acceptance_table(CPU)
    kinds, hard = torch.tensor([0] * 4 + [1] * 4), [[0.05] * STEPS] * 4
    text = Text([[0.6] * STEPS] * 4 + hard)
    for _ in range(60):
        before = text.step(table, kinds, num_drafts=8)
    assert before[4:].max() == 1
    text = replace_rates(text, [[0.6] * STEPS] * 4 + [[0.99] * STEPS] * 4)
    for _ in range(400):
        after = text.step(table, kinds, num_drafts=8)
    assert after[4:].sum() > after[:4].sum()


def replace_rates(text: Text, rates: list[list[float]]) -> Text:
    return Text(rates, seed=1)


def test_selection_by_measured_chances_keeps_parents():
    candidates = chains(2, 0.9)
    table = make_acceptance_table(CPU)
    entries = calibrate_(candidates, torch.zeros(2, STEPS).long(), table, steps=STEPS)
    table.tried[entries[0, 1]] = table.accepted[entries[0, 1]] = 100.0  # the second draft is safe
    candidates = replace(candidates, scores=chains(2, 0.9).scores)
    calibrate_(candidates, torch.zeros(2, STEPS).long(), table, steps=STEPS)
    shares = share_nodes(
        candidates, torch.tensor([[STEPS] * 2, [1] * 2, [5] * 2]), most=4, num_drafts=3
    )
    tree = select_nodes(torch.tensor([9, 9]), candidates, shares, BUDGET).tree
    assert tree.tokens.tolist() == [[9, 1, 2, -1, -1], [9, 1, -1, -1, -1]]
