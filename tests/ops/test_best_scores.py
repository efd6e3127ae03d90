"""The best score of every row: the compiled search against plain torch."""

import math
import random

import pytest
import torch
from support.torch_threads import torch_threads

from outrider.ops.sampling.best_scores import best_scores, best_scores_reference

ODD = [math.nan, math.inf, -math.inf, 0.0, -0.0]


def assert_same(scores: torch.Tensor) -> None:
    (columns, values), (right, best) = best_scores(scores), best_scores_reference(scores)
    assert torch.equal(columns, right)
    torch.testing.assert_close(values, best, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("seed", range(20))
def test_the_first_of_the_best_scores_is_found_whatever_the_parts(seed):
    rng = random.Random(seed)
    rows, width = rng.choice([0, 1, 3, 40]), rng.choice([1, 128, 129, 4096, 4097, 20_000])
    wide = torch.randn(rows, width + 3) * rng.choice([0.1, 40.0])
    if rng.random() < 0.5:
        wide = wide.round()  # many are equal
    for _ in range(rng.choice([0, 2, 50])):
        if rows:
            wide[rng.randrange(rows), rng.randrange(width)] = rng.choice(ODD)
    with torch_threads(rng.choice([1, 2, 3])):
        assert_same(wide[:, 1 : width + 1])  # rows need not be dense


@pytest.mark.parametrize("value", ODD)
def test_the_first_of_equal_scores_is_found(value):
    assert_same(torch.full((2, 9000), value))


def test_the_first_nan_is_found_before_any_number():
    scores = torch.zeros(2, 9000)
    scores[0, [4095, 4097, 8999]] = math.nan
    scores[1, 100], scores[1, 8500] = math.inf, math.nan
    assert best_scores(scores)[0].tolist() == [4095, 8500]
    assert_same(scores)
