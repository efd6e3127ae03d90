"""Earlier occurrences of last tokens: the compiled search against plain torch."""

import random

import pytest
import torch

from outrider.ops.tree.find_occurrences import NgramMatch, find_occurrences_reference
from outrider.ops.tree.find_occurrences_compiled import find_occurrences_compiled


@pytest.mark.parametrize("seed", range(40))
def test_occurrences_are_those_of_the_reference(seed):
    rng = random.Random(seed)
    rows, width = rng.choice([1, 3]), rng.choice([1, 5, 40, 200])
    tokens = torch.tensor([[rng.randrange(3) for _ in range(width)] for _ in range(rows)])
    first = rng.choice([0, rng.randrange(width)])
    tokens[:, :first] = -1  # as before predictions that are shorter than their table
    whole = torch.cat([tokens, tokens], 1).int()[:, :width]  # rows need not be dense
    lengths = torch.tensor([rng.randrange(first, width) for _ in range(rows)])
    least = rng.randint(1, 3)
    match = NgramMatch(least=least, most=rng.randint(least, 8))
    right = find_occurrences_reference(whole, lengths, match)
    ours = find_occurrences_compiled(whole, lengths, match)
    assert torch.equal(ours.matched, right.matched)
    assert torch.equal(ours.ends * (ours.matched > 0), right.ends * (right.matched > 0))
