"""The noise is Gumbel, independent in each of its arguments, and never changes."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from outrider.ops.sampling.gumbel_noise import (
    TILE,
    _exponential_,
    _negative_log_,
    gumbel,
    gumbel_at,
)

ALPHA = 1e-6
# Pinned: other noise would change the answer to every seed that users have stored.
GOLDEN_BITS = [
    [1045215194, 1013270736, -1087674321],
    [1069222898, -1101919068, 1073759869],
    [-1081851861, 1065410731, 1072579790],
]


def noise_of_bits(bits):
    """What the noise makes of given hash values."""
    spare = torch.empty((3, *bits.shape), dtype=torch.int32)
    bits, out = bits.clone(), torch.empty(bits.shape)
    exponential = _exponential_(bits, *spare)
    _negative_log_(exponential, bits, spare[0], out=out)
    return out


def exact_noise_of_bits(bits):
    x = bits.numpy().astype(np.float64)
    h = (np.where(x < 0, -1 - x, x) + 0.5) * 2.0**-32
    return -np.log(np.where(x < 0, -np.log(h), -np.log1p(-h)))


def draw(*, seeds, positions, tokens):
    """Noise of one token for each of many seeds or positions, whichever is a tensor."""
    seeds, positions, tokens = torch.broadcast_tensors(
        *(torch.as_tensor(x, dtype=torch.int64) for x in (seeds, positions, tokens))
    )
    return gumbel_at(seeds, positions, tokens[:, None])[:, 0].numpy()


def test_noise_has_its_golden_bits():
    seeds, positions = torch.tensor([0, 7, 2**63 - 1]), torch.tensor([0, 1000, 2**31])
    tokens = torch.tensor([[0, 1, 49_151]]).expand(3, 3)
    assert gumbel_at(seeds, positions, tokens).view(torch.int32).tolist() == GOLDEN_BITS


def test_noise_of_a_vocabulary_is_the_noise_of_its_tokens():
    seeds, positions, vocab = torch.tensor([3, 4]), torch.tensor([10, 11]), 2 * TILE + 17
    some = torch.tensor([[0, 5, TILE, 2 * TILE + 16], [TILE - 1, 1, TILE + 1, 2 * TILE]])
    whole = gumbel(seeds, positions, vocab)
    assert torch.equal(whole.gather(1, some), gumbel_at(seeds, positions, some))


def test_noise_of_a_row_does_not_depend_on_the_other_rows():
    seeds, positions = torch.arange(50), torch.arange(50) * 31
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    together = gumbel(seeds, positions, 1001)
    assert torch.equal(gumbel(seeds[order], positions[order], 1001), together[order])
    assert torch.equal(gumbel(seeds[7:8], positions[7:8], 1001), together[7:8])


def test_no_hash_value_gives_a_noise_that_is_not_finite_and_exact():
    powers = torch.tensor([0] + [s * 2**k for k in range(32) for s in (1, -1)])
    near = (powers[:, None] + torch.arange(-9, 10)).clamp(-(2**31), 2**31 - 1).flatten()
    generator = torch.Generator().manual_seed(2)
    anywhere = torch.randint(-(2**31), 2**31, (200_000,), generator=generator)
    bits = torch.cat([near, anywhere]).int()
    noise = noise_of_bits(bits)
    assert noise.isfinite().all()
    np.testing.assert_allclose(noise.numpy(), exact_noise_of_bits(bits), rtol=2e-7, atol=5e-7)
    assert noise.max() == noise_of_bits(torch.tensor([0], dtype=torch.int32))  # 22.87
    assert noise.min() == noise_of_bits(torch.tensor([-1], dtype=torch.int32))  # -3.13


def test_noise_has_the_distribution_of_gumbel():
    noise = gumbel(torch.arange(64), torch.full((64,), 5), 2**16).flatten().numpy()
    n = noise.size
    assert abs(noise.mean(dtype=np.float64) - np.euler_gamma) < 6 * math.sqrt(math.pi**2 / 6 / n)
    assert abs(noise.var(dtype=np.float64) / (math.pi**2 / 6) - 1) < 6 * math.sqrt(4.4 / n)
    edges = stats.gumbel_r.ppf(np.arange(1, 1024) / 1024)
    counts = np.bincount(np.searchsorted(edges, noise), minlength=1024)
    assert stats.chisquare(counts).pvalue > ALPHA
    for quantile in (-2.3, 6.0, 9.0, 11.0):  # far out on both sides
        tail = noise < quantile if quantile < 0 else noise > quantile
        share = stats.gumbel_r.cdf(quantile) if quantile < 0 else stats.gumbel_r.sf(quantile)
        assert stats.binomtest(int(tail.sum()), n, share).pvalue > ALPHA


def dependence(a, b):
    """p-value of the chi-square test that two samples are independent, in 32 x 32 cells."""
    edges = stats.gumbel_r.ppf(np.arange(1, 32) / 32)
    cells = np.searchsorted(edges, a) * 32 + np.searchsorted(edges, b)
    return stats.chisquare(np.bincount(cells, minlength=1024)).pvalue


@pytest.mark.parametrize("step", [1, 2, 64, 2**31 - 1])
@pytest.mark.parametrize("argument", ["seeds", "positions", "tokens"])
def test_noise_is_independent_between_neighbours(argument, step):
    place = {"seeds": 11, "positions": 12, "tokens": 13}
    count = torch.arange(2**17)
    here = draw(**place | {argument: count})
    there = draw(**place | {argument: count + step})
    assert dependence(here, there) > ALPHA
    assert abs(np.corrcoef(here, there)[0, 1]) < 6 / math.sqrt(2**17)


@pytest.mark.parametrize("bit", range(0, 63, 9))
def test_noise_is_independent_between_seeds_that_differ_in_one_bit(bit):
    seeds = torch.arange(2**16)
    here = draw(seeds=seeds, positions=5, tokens=6)
    assert dependence(here, draw(seeds=seeds ^ (1 << bit), positions=5, tokens=6)) > ALPHA


def test_noise_is_independent_between_a_seed_and_a_position_that_add_up_alike():
    count = torch.arange(2**17)
    here = draw(seeds=count, positions=1, tokens=0)
    there = draw(seeds=count + 1, positions=0, tokens=0)
    assert dependence(here, there) > ALPHA


def test_the_independence_test_notices_a_shared_stream():
    here = draw(seeds=torch.arange(2**16), positions=0, tokens=0)
    assert dependence(here, 0.9 * here + 0.1) < ALPHA
