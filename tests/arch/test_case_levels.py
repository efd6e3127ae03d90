"""Of the cases of a test, fast and slow ones contain every pair of values; the matrix is apart."""

import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from support.all_pairs import cover_pairs, pairs_of

ROOT = Path(__file__).parents[2]


def test_the_chosen_cases_contain_every_pair_of_values():
    names = ("size", "rows", "tile", "dtype")
    cases = [
        dict(zip(names, values, strict=True)) for values in product("abcd", range(4), "xy", (0, 1))
    ]
    fast, others = cases[:4], cases[4:]
    chosen = [*fast, *(others[index] for index in cover_pairs(fast, others, seed="any"))]
    assert set().union(*map(pairs_of, chosen)) == set().union(*map(pairs_of, cases))
    assert len(chosen) < len(cases) / 2


def test_every_value_of_an_only_parameter_is_chosen():
    cases = [{"value": value} for value in range(9)]
    assert sorted(cover_pairs(cases[:2], cases[2:], seed="any")) == list(range(7))


@pytest.mark.slow
def test_the_complete_matrix_is_not_among_the_slow_tests():
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only"]
    where = ["-o", "addopts=--import-mode=importlib -q", "tests/equality/test_matrix.py"]
    found = subprocess.run(
        [*command, *where, "-m", "slow"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "test_every_way_of_running" in found
    assert "test_the_complete_matrix" not in found
