"""Fused layers over weight blocks against the same parts one after another."""

import math

import pytest
import torch

from outrider.ops.linear.block_linear import BlockLinear, eight_bit_linear
from outrider.ops.linear.normed_blocks import BlockGate, BlockHeads, can_gate
from outrider.ops.linear.swiglu import swiglu
from outrider.ops.norm_rope.head_norm import NoHeadNorm
from outrider.ops.norm_rope.rms_norm import Norm, NormLater, make_norm
from outrider.ops.norm_rope.rotary import Rotation, rotate_and_store

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, PAGE = 3, 2, 16, 64, 4
ROWS = [1, 3, 8, 21]


def _norm(*, is_there: bool = True) -> Norm:
    torch.manual_seed(1)
    weight = torch.randn(HIDDEN)
    return make_norm(weight, 0.01) if is_there else NormLater(weight)


def _rotation(rows: int) -> Rotation:
    angles = torch.randn(rows, 1, HEAD_DIM // 2).repeat(1, 1, 2)
    signs = torch.tensor([-1.0, 1.0]).repeat_interleave(HEAD_DIM // 2)
    return Rotation(angles.cos(), angles.sin() * signs)


def _qkv() -> BlockLinear:
    torch.manual_seed(2)
    return eight_bit_linear(torch.randn((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN))


def _pool() -> torch.Tensor:  # [pages, page_size, 2 * kv_heads, head_dim]
    return torch.zeros(8, PAGE, 2 * KV_HEADS, HEAD_DIM)


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("rows", ROWS)
def test_a_gate_is_norm_projection_and_swiglu(rows: int, is_there: bool) -> None:
    norm = _norm(is_there=is_there)
    gate_up, x = eight_bit_linear(torch.randn(96, HIDDEN)), torch.randn(rows, HIDDEN)
    expected = swiglu(gate_up(norm(x)))
    torch.testing.assert_close(BlockGate(norm, gate_up)(x), expected, rtol=1e-2, atol=0.3)


def test_halves_that_are_no_whole_tiles_are_not_gated_in_one() -> None:
    assert can_gate(eight_bit_linear(torch.randn(64, 32)))
    assert not can_gate(eight_bit_linear(torch.randn(48, 32)))


@pytest.mark.parametrize("rows", ROWS)
def test_heads_are_projected_rotated_and_stored(rows: int) -> None:
    norm, qkv, rotation = _norm(), _qkv(), _rotation(rows)
    x, slots = torch.randn(rows, HIDDEN), torch.randperm(8 * PAGE)[:rows]
    pool, expected = _pool(), _pool()
    channels = qkv(norm(x)).view(rows, -1, HEAD_DIM)
    rotate_and_store(channels, rotation, NoHeadNorm(), expected, slots)
    queries = BlockHeads(norm, qkv)(x, rotation, pool, slots)
    torch.testing.assert_close(queries, channels[:, :HEADS], rtol=1e-2, atol=0.3)
    torch.testing.assert_close(pool, expected, rtol=1e-2, atol=0.3)


@pytest.mark.parametrize("rows", ROWS)
def test_keys_and_values_alone_are_those_of_the_whole_projection(rows: int) -> None:
    torch.manual_seed(2)
    weight = torch.randn((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN)
    whole, alone = eight_bit_linear(weight), eight_bit_linear(weight[HEADS * HEAD_DIM :])
    x, rotation, slots = torch.randn(rows, HIDDEN), _rotation(rows), torch.arange(rows)
    pool, expected = _pool(), _pool()
    BlockHeads(_norm(), whole)(x, rotation, expected, slots)
    queries = BlockHeads(_norm(), alone)(x, rotation, pool, slots)
    assert queries.shape == (rows, 0, HEAD_DIM)
    assert torch.equal(pool, expected)


def test_bits_of_a_row_do_not_depend_on_other_rows() -> None:
    norm, qkv, rotation = _norm(), _qkv(), _rotation(19)
    gate, heads = BlockGate(norm, eight_bit_linear(torch.randn(96, HIDDEN))), BlockHeads(norm, qkv)
    x, slots = torch.randn(19, HIDDEN), torch.arange(19)
    gated, pool = gate(x), _pool()
    queries = heads(x, rotation, pool, slots)
    for num in range(1, 19):
        part, own = Rotation(rotation.cos[:num], rotation.sin[:num]), _pool()
        assert torch.equal(gate(x[:num]), gated[:num])
        assert torch.equal(heads(x[:num], part, own, slots[:num]), queries[:num])
        assert torch.equal(own.flatten(0, 1)[:num], pool.flatten(0, 1)[:num])


def test_what_is_not_finite_is_stored_in_keys_only() -> None:
    heads, rotation, pool = BlockHeads(_norm(), _qkv()), _rotation(2), _pool()
    x = torch.randn(2, HIDDEN)
    x[1, 5] = math.nan
    heads(x, rotation, pool, torch.arange(2))
    stored = pool.flatten(0, 1)
    assert stored[0].isfinite().all()
    assert stored[1, :KV_HEADS].isnan().all()
    assert not stored[1, KV_HEADS:].any()


def test_a_norm_of_zeros_without_eps_stops_no_other_row() -> None:
    norm, gate_up = make_norm(torch.ones(HIDDEN), 0.0), eight_bit_linear(torch.randn(96, HIDDEN))
    x = torch.randn(3, HIDDEN)
    expected = BlockGate(norm, gate_up)(x)
    x[1] = 0.0
    out = BlockGate(norm, gate_up)(x)
    assert out[1].isnan().all()
    assert torch.equal(out[[0, 2]], expected[[0, 2]])
