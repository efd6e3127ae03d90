"""Suffix drafting as compiled loops, against plain torch."""

import random

import pytest
import torch

from outrider.ops.tree.context_order import order_places_reference_
from outrider.ops.tree.context_order_compiled import order_places_compiled_
from outrider.ops.tree.find_occurrences import NgramMatch
from outrider.ops.tree.suffix_paths import find_suffixes_reference
from outrider.ops.tree.suffix_paths_compiled import find_suffixes_compiled
from outrider.spec.shared_text import SharedText
from outrider.wire.row_sampling import RowSampling
from outrider.wire.scheduled_batch import NO_OWNER, FinishedText, RowAdmission

OWNERS = [11, -(1 << 62), NO_OWNER]


def random_tokens(rng: random.Random, most: int) -> tuple[int, ...]:
    return tuple(rng.randrange(3) for _ in range(rng.randrange(1, most)))


def some_texts(rng: random.Random, steps: int) -> SharedText:
    """Texts of which the first may be overwritten in part, and a reader for every row."""
    shared = SharedText(rows=6, longest_path=steps, device=torch.device("cpu"), capacity=200)
    for _ in range(rng.randrange(12)):
        shared.append([FinishedText(owner=rng.choice(OWNERS), tokens=random_tokens(rng, 60))])
    sampling = RowSampling(seed=0)
    for row in range(6):
        owner = rng.choice(OWNERS)
        admission = RowAdmission(row=row, sampling=sampling, prompt=(), output=(), owner=owner)
        shared.admit([admission])
    return shared


@pytest.mark.parametrize("seed", range(60))
def test_paths_are_those_of_the_reference(seed):
    rng = random.Random(seed)
    rows, width, steps = rng.choice([1, 3]), rng.choice([2, 5, 40, 200]), rng.choice([1, 4, 15])
    shared = some_texts(rng, steps)
    text = torch.tensor([[rng.randrange(3) for _ in range(width)] for _ in range(rows)])
    first = rng.choice([0, rng.randrange(width)])
    text[:, :first] = -1  # as before predictions that are shorter than their table
    text = torch.cat([text, text], 1).int()[:, :width]  # rows need not be dense
    lengths = torch.tensor([rng.randrange(first, width) for _ in range(rows)])
    readers = shared.readers(torch.tensor([rng.randrange(6) for _ in range(rows)]))
    least = rng.randint(1, 3)
    match = NgramMatch(least=least, most=rng.randint(least, 8))
    right = find_suffixes_reference(text, lengths, readers, shared.texts, match, steps=steps)
    ours = find_suffixes_compiled(text, lengths, readers, shared.texts, match, steps=steps)
    is_place = right.matched > 0
    assert torch.equal(ours.matched, right.matched)
    assert torch.equal(ours.paths[is_place], right.paths[is_place])
    torch.testing.assert_close(ours.weights, right.weights, rtol=1e-5, atol=1e-12)


def test_the_loops_find_matches_in_texts_of_their_own_and_of_others():
    """What the random cases above rely on: many of them have both kinds of matches."""
    own, others = 0, 0
    for seed in range(60):
        shared = some_texts(random.Random(seed), 4)
        text = torch.tensor([[0, 1, 2, 0, 1, 2, 0, 1]], dtype=torch.int32)
        found = find_suffixes_compiled(
            text,
            torch.tensor([7]),
            shared.readers(torch.tensor([1])),
            shared.texts,
            NgramMatch(least=1, most=5),
            steps=4,
        )
        own, others = own + int(found.matched[0, 0] > 0), others + int(found.matched[0, 8] > 0)
    assert own == 60
    assert 10 < others < 60  # some rows read no texts


def test_a_length_beyond_its_row_reads_no_other_row():
    """A wrong plan gets wrong drafts, but no memory of others."""
    shared = some_texts(random.Random(1), 4)
    text = torch.tensor([[0, 1, 2, 0, 1, 2, 0, 1], [9] * 8], dtype=torch.int32)
    readers = shared.readers(torch.tensor([1, 1]))
    found = [
        find_suffixes_compiled(
            text, torch.tensor(lengths), readers, shared.texts, NgramMatch(least=1, most=5), steps=4
        )
        for lengths in ([7, 7], [20, 20])
    ]
    assert torch.equal(found[1].matched, found[0].matched)
    assert torch.equal(found[1].paths, found[0].paths)


@pytest.mark.parametrize("seed", range(40))
def test_merged_places_are_those_of_a_sort(seed):
    rng = random.Random(seed)
    size, levels = rng.choice([1, 7, 300]), 3
    by_place = torch.tensor([[rng.randrange(-5, 5) for _ in range(size)] for _ in range(levels)])
    keys, places = torch.empty_like(by_place), torch.empty_like(by_place)
    order_places_reference_(by_place, keys, places)
    for _ in range(5):
        begin = rng.randrange(size)
        changed = slice(begin, rng.randint(begin, size))
        by_place[:, changed] = torch.randint(-5, 5, by_place[:, changed].shape)
        order_places_compiled_(by_place, keys, places, changed)
        right = torch.empty_like(keys), torch.empty_like(places)
        order_places_reference_(by_place, *right)
        assert torch.equal(keys, right[0])
        assert torch.equal(places, right[1])
