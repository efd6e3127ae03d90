"""Filter, noise and argmax in one compiled call of a CPU: the choices of the torch reference."""

import math
import random

import pytest
import torch
from support.torch_threads import torch_threads

from outrider.ops.sampling import sample_token as sampling
from outrider.ops.sampling.sample_token import (
    NOT_FINITE,
    NOTHING_LEFT,
    best_keys,
    best_keys_reference,
    sample_token,
    sample_token_reference,
)
from outrider.ops.sampling.sampling_columns import RowNoise

INF = math.inf
WIDTHS = [1, 2, 63, 64, 65, 1000, 4095, 4096, 4097, 9001]
ODD = [math.nan, -math.nan, INF, -INF, 0.0, -0.0, 2.0]


def noise_of(temperatures: list[float], rows: torch.Tensor) -> RowNoise:
    """Columns of wider tables, as the sampling table has them."""
    num = len(temperatures)
    reals, integers = torch.zeros(num, 6), torch.zeros(num, 2, dtype=torch.int64)
    reals[:, 0], integers[:, 0] = torch.tensor(temperatures), torch.arange(num) * 12_345
    positions = torch.arange(len(rows)) * 17 + 3
    seeds, temperature = integers[:, 0], reals[:, 0]
    return RowNoise(seeds=seeds, temperatures=temperature, rows=rows, positions=positions)


def random_case(rng: random.Random, width: int) -> tuple[torch.Tensor, RowNoise, torch.Tensor]:
    """Rows of a wider tensor, noise, and floors that leave all, some or none."""
    rows = rng.choice([1, 2, 7])
    wide = torch.randn(rows, width + 3) * rng.choice([0.0, 0.1, 4.0])
    if rng.random() < 0.4:
        wide = wide.round()  # many are equal
    for _ in range(rng.choice([0, 0, 1, 20])):
        wide[rng.randrange(rows), rng.randrange(width) + 1] = rng.choice(ODD)
    temperatures = [rng.choice([0.0, 0.0, 1e-6, 0.2, 1.0, 3.0]) for _ in range(5)]
    noise = noise_of(temperatures, torch.tensor([rng.randrange(5) for _ in range(rows)]))
    floors = torch.tensor([rng.choice([-INF, math.nan, -1.0, 0.0, 2.0, 9.0]) for _ in range(rows)])
    return wide[:, 1 : width + 1], noise, floors if rng.random() < 0.7 else floors[:0]


@pytest.fixture(autouse=True)
def no_reference(monkeypatch):
    """There is no plain torch to fall back to: the compiled form runs."""
    monkeypatch.setattr(sampling, "sample_token_reference", None)
    monkeypatch.setattr(sampling, "best_keys_reference", None)


def test_tokens_and_faults_are_those_of_the_reference():
    for seed in range(150):
        rng = random.Random(seed)
        width = WIDTHS[seed % len(WIDTHS)]
        print(f"seed {seed}, {width} tokens")
        scores, noise, floors = random_case(rng, width)
        right = sample_token_reference(scores.clone(), noise, floors)
        with torch_threads(rng.choice([1, 3])):
            ours = sample_token(scores.clone(), noise, floors)
        assert torch.equal(ours.tokens, right.tokens)
        assert torch.equal(ours.faults, right.faults)


def test_rows_of_other_strides_are_sampled_where_they_lie():
    scores, noise = torch.randn(4, 3, 700), noise_of([0.7], torch.zeros(4, dtype=torch.int64))
    right = sample_token_reference(scores[:, 1].clone(), noise, torch.full((4,), 0.5))
    ours = sample_token(scores[:, 1], noise, torch.full((4,), 0.5))
    assert torch.equal(ours.tokens, right.tokens)


def test_words_of_a_part_of_the_vocabulary_are_those_of_the_reference():
    for seed in range(30):
        rng = random.Random(seed)
        print(f"seed {seed}")
        scores, noise, _ = random_case(rng, rng.choice(WIDTHS))
        right = best_keys_reference(scores.clone(), noise, 5000)
        assert torch.equal(best_keys(scores.clone(), noise, first=5000), right)


def test_a_floor_above_all_scores_leaves_nothing_and_nan_stays():
    scores = torch.zeros(3, 200)
    scores[1, 100] = math.nan
    for temperature in (0.0, 1.0):
        noise = noise_of([temperature], torch.zeros(3, dtype=torch.int64))
        sampled = sample_token(scores, noise, torch.full((3,), 1.0))
        assert sampled.faults.tolist() == [NOTHING_LEFT, NOT_FINITE, NOTHING_LEFT]
        assert sampled.tokens.tolist() == [0, 100, 0]
