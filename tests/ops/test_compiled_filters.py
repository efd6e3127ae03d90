"""The floors of filters that compiled functions of a CPU find: the bits of the torch reference."""

import math
import random

import numpy as np
import pytest
import torch
from support.torch_threads import torch_threads

from outrider.ops.compiled.token_masses import mass_of, mass_of_all, scale_of
from outrider.ops.sampling import top_k_top_p
from outrider.ops.sampling.sampling_columns import FilterTables
from outrider.ops.sampling.top_k_top_p import (
    filter_floors,
    filter_floors_reference,
    masses_reference,
)

INF = math.inf
WIDTHS = [1, 2, 3, 7, 63, 64, 65, 1000, 1023, 1025, 5003, 20_001]


def tables_of(filters: list[tuple[float, float, float, int]]) -> FilterTables:
    """Columns of wider tables, as the sampling table has them: temperature, top-p, log min-p, k."""
    reals, integers = torch.zeros(len(filters), 6), torch.zeros(len(filters), 2, dtype=torch.int64)
    reals[:, :3] = torch.tensor([each[:3] for each in filters])
    integers[:, 1] = torch.tensor([each[3] for each in filters])
    temperature, top_p, log_min_p = reals[:, :3].unbind(1)
    return FilterTables(
        temperature=temperature, top_p=top_p, log_min_p=log_min_p, top_k=integers[:, 1]
    )


def random_filters(rng: random.Random, width: int) -> tuple[float, float, float, int]:
    return (
        rng.choice([0.0, 1e-40, 1e-6, 0.2, 0.7, 1.0, 1.3, 100.0, 1e30, 2 * rng.random()]),
        rng.choice([1.0, 1.0, 0.9, 1e-9, 0.999999, 0.0, rng.random()]),
        rng.choice([-INF, -INF, -3.0, -1e-3, 0.0, -20.0]),
        min(rng.choice([width, width, 1, 2, 50, 1024, rng.randint(1, width)]), width),
    )


def random_scores(rng: random.Random, rows: int, width: int) -> torch.Tensor:
    """Rows of a wider tensor."""
    wide = torch.randn(rows, width + 5) * rng.choice([0.0, 0.01, 1.0, 4.0, 60.0, 1e30])
    if rng.random() < 0.4:
        wide = wide.round()  # many are equal
    for _ in range(rng.choice([0, 3, width // 2])):
        column = rng.randrange(width) + 2
        wide[rng.randrange(rows), column] = rng.choice([0.0, -0.0, -INF, -INF, 1.5])
    return wide[:, 2 : width + 2]


def assert_same(scores: torch.Tensor, tables: FilterTables, rows: torch.Tensor) -> None:
    """Equal bits, and NaN where the reference has it."""
    right = filter_floors_reference(scores, tables, rows)
    for threads in (1, 3):
        with torch_threads(threads):
            floors = filter_floors(scores, tables, rows)
        is_same = floors.view(torch.int32) == right.view(torch.int32)
        assert (is_same | (floors.isnan() & right.isnan())).all()


@pytest.fixture(autouse=True)
def no_reference(monkeypatch):
    """`filter_floors` has no plain torch to fall back to: the compiled form runs."""
    monkeypatch.setattr(top_k_top_p, "filter_floors_reference", None)


def test_floors_of_any_vocabulary_have_the_bits_of_the_reference():
    for seed in range(84):
        rng = random.Random(seed)
        rows, width = rng.choice([0, 1, 2, 9]), WIDTHS[seed % len(WIDTHS)]
        print(f"seed {seed}: {rows} rows of {width}")
        scores = random_scores(rng, max(rows, 1), width)[:rows]
        tables = tables_of([random_filters(rng, width) for _ in range(12)])
        assert_same(scores, tables, torch.tensor([rng.randrange(12) for _ in range(rows)]).long())


def test_rows_without_filters_stand_beside_rows_with_all_of_them():
    off, on = (1.0, 1.0, -INF, 3001), (0.8, 0.9, -4.0, 40)
    tables = tables_of([off, on, (0.0, *off[1:]), (0.5, 0.95, -INF, 3001)])
    assert_same(torch.randn(7, 3001) * 3, tables, torch.tensor([1, 0, 3, 2, 0, 1, 3]))


def test_rows_that_are_not_finite_change_no_other_row():
    for bad in (math.nan, -math.nan, INF, -INF):
        scores = torch.randn(6, 700)
        scores[1, 300], scores[3], scores[5, ::2] = bad, bad, bad
        for filters in ((0.7, 0.9, -INF, 700), (1.0, 1.0, -2.0, 700), (1.0, 1.0, -INF, 20)):
            assert_same(scores, tables_of([filters]), torch.zeros(6, dtype=torch.int64))


def test_top_k_of_every_size_is_found_in_sorted_rows():
    scores = torch.arange(5003.0).flip(0).expand(9, -1)
    tables = tables_of([(1.0, 1.0, -INF, k) for k in (1, 2, 1023, 1024, 1025, 1026, 3000, 5002)])
    rows = torch.tensor([3, 5, 4, 0, 1, 2, 7, 6, 4])
    assert_same(scores, tables, rows)
    assert filter_floors(scores, tables, rows)[:3].tolist() == [
        5003 - 1024,
        5003 - 1026,
        5003 - 1025,
    ]


def test_a_nucleus_of_few_and_of_nearly_all_tokens_is_found():
    """Equal tokens, one far above the others, and a tail that no few candidates outweigh."""
    scores = torch.zeros(4, 5003)
    scores[1, 4000] = 30.0
    scores[2] = -torch.arange(1, 5004).log()
    scores[3] = torch.linspace(0, -200, 5003)
    for top_p in (0.0, 1e-6, 0.5, 0.9, 0.99, 0.999999):
        tables = tables_of([(1.0, top_p, -INF, 5003), (1.0, top_p, -INF, 3000)])
        for row in range(2):
            assert_same(scores, tables, torch.full((4,), row))


def test_masses_are_those_of_the_reference_at_all_temperatures():
    rng = random.Random(4)
    scores = torch.randn(30, 500) * 3
    scores[:, ::50] = -INF
    temperatures = torch.tensor(
        [1e-30, 1e-3, 1.0, 100.0, *(rng.uniform(0.1, 3) for _ in range(26))]
    )
    best = scores.amax(1, keepdim=True)
    right = masses_reference(scores, best, temperatures[:, None])
    for row in range(30):
        given = best.numpy()[row, 0], np.float32(scale_of(temperatures.numpy()[row]))
        assert [mass_of(score, *given) for score in scores[row].numpy()] == right[row].tolist()
        for part in (scores[row], scores[row].sort().values):  # parts of tiny masses alone, too
            assert mass_of_all(part.numpy(), *given) == right[row].sum()
