"""A token that ranks choose together, each from some of the logits, is that of all logits."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.ops.sampling.sample_token import best_keys, read_keys, sample_token
from outrider.ops.sampling.sampling_columns import NoNoise, RowNoise

ROWS, VOCAB = 4, 53
# Few values, so that ties are common; and what faults are made of.
VALUES = [0.0, -0.0, 1.5, 1.5, -2.0, 30.0, -math.inf]


def noise_of(is_noisy):
    rows = torch.arange(ROWS)
    if not is_noisy:
        return NoNoise(unread=rows)
    return RowNoise(
        seeds=torch.tensor([1, 2**40, 7, 0]),
        temperatures=torch.tensor([0.0, 1.0, 0.3, 2.0]),
        rows=rows,
        positions=torch.tensor([3, 9, 0, 2**20]),
    )


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**30),
    cuts=st.lists(st.integers(0, VOCAB), max_size=5),
    is_noisy=st.booleans(),
    worst=st.sampled_from([1.0, math.nan, math.inf, -math.inf]),
)
def test_the_best_of_all_parts_is_the_best_of_all(seed, cuts, is_noisy, worst):
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(VALUES), (ROWS, VOCAB), generator=generator)
    logits = torch.tensor(VALUES)[chosen]
    logits[1, seed % VOCAB] = worst
    logits[2] = -math.inf if math.isnan(worst) else logits[2]
    noise, places = noise_of(is_noisy), [0, *sorted(cuts), VOCAB]
    keys = [
        best_keys(logits[:, first:last].clone(), noise, first=first)
        for first, last in pairwise(places)
    ]
    found = read_keys(torch.stack(keys).amax(0))
    right = sample_token(logits.clone(), noise, torch.empty(0))
    assert found.faults.tolist() == right.faults.tolist()
    fine = right.faults == 0
    assert found.tokens[fine].tolist() == right.tokens[fine].tolist()


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled, not interpreted")
@pytest.mark.parametrize("is_noisy", [False, True])
def test_the_kernel_makes_the_same_keys(is_noisy):
    pytest.importorskip("triton")
    from outrider.ops.sampling.sample_token_triton import best_keys_triton

    logits = torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(0))
    logits[3, 5] = math.nan
    noise = noise_of(is_noisy)
    expected = best_keys(logits[:, 9:40].clone(), noise, first=9)
    assert best_keys_triton(logits[:, 9:40], noise, 9).tolist() == expected.tolist()
