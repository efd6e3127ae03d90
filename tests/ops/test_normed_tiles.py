"""Fused layers over weights in tiles against the same parts one after another."""

import math

import pytest
import torch
from support.torch_threads import torch_threads

from outrider.ops.linear.block_linear import BlockLinear, eight_bit_linear
from outrider.ops.linear.dense_linear import DenseLinear
from outrider.ops.linear.normed_tiles import TileGate, TileHeads, can_gate
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


KINDS = ["blocks", "float32", "bfloat16", "float16"]


def _linear(kind: str, outputs: int, inputs: int = HIDDEN) -> BlockLinear | DenseLinear:
    torch.manual_seed(2)
    weight = torch.randn(outputs, inputs)
    return (
        eight_bit_linear(weight) if kind == "blocks" else DenseLinear(weight, getattr(torch, kind))
    )


def _qkv(kind: str = "blocks") -> BlockLinear | DenseLinear:
    return _linear(kind, (HEADS + 2 * KV_HEADS) * HEAD_DIM)


def _assert_close(ours: torch.Tensor, right: torch.Tensor, kind: str) -> None:
    """Codes of blocks may be rounded to another neighbour where norms differ in their last bit."""
    rtol, atol = (1e-2, 0.3) if kind == "blocks" else (1e-5, 1e-4)
    torch.testing.assert_close(ours, right, rtol=rtol, atol=atol)


def _pool() -> torch.Tensor:  # [pages, page_size, 2 * kv_heads, head_dim]
    return torch.zeros(8, PAGE, 2 * KV_HEADS, HEAD_DIM)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("rows", ROWS)
def test_a_gate_is_norm_projection_and_swiglu(rows: int, is_there: bool, kind: str) -> None:
    norm = _norm(is_there=is_there)
    gate_up, x = _linear(kind, 96), torch.randn(rows, HIDDEN)
    _assert_close(TileGate(norm, gate_up.product)(x), swiglu(gate_up(norm(x))), kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outputs", [1, 16, 23, 32, 40])
@pytest.mark.parametrize("rows", [1, 2, 5, 8, 11])
def test_a_product_alone_is_that_of_its_layer(rows: int, outputs: int, kind: str) -> None:
    linear, x, residual = (
        _linear(kind, outputs),
        torch.randn(rows, HIDDEN),
        torch.randn(rows, outputs),
    )
    out, added = torch.full_like(residual, torch.nan), residual.clone()
    linear.product.multiply(x, out, is_added=False)
    linear.product.multiply(x, added, is_added=True)
    assert torch.equal(out, linear(x))
    assert torch.equal(added, linear.plus(x, residual))


def test_halves_that_are_no_whole_tiles_are_not_gated_in_one() -> None:
    assert can_gate(_linear("blocks", 64).product)
    assert not can_gate(_linear("float32", 48).product)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", ROWS)
def test_heads_are_projected_rotated_and_stored(rows: int, kind: str) -> None:
    norm, qkv, rotation = _norm(), _qkv(kind), _rotation(rows)
    x, slots = torch.randn(rows, HIDDEN), torch.randperm(8 * PAGE)[:rows]
    pool, expected = _pool(), _pool()
    channels = qkv(norm(x)).view(rows, -1, HEAD_DIM)
    rotate_and_store(channels, rotation, NoHeadNorm(), expected, slots)
    queries = TileHeads(norm, qkv.product)(x, rotation, pool, slots)
    _assert_close(queries, channels[:, :HEADS], kind)
    _assert_close(pool, expected, kind)


@pytest.mark.parametrize("rows", ROWS)
def test_keys_and_values_alone_are_those_of_the_whole_projection(rows: int) -> None:
    torch.manual_seed(2)
    weight = torch.randn((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN)
    whole, alone = eight_bit_linear(weight), eight_bit_linear(weight[HEADS * HEAD_DIM :])
    x, rotation, slots = torch.randn(rows, HIDDEN), _rotation(rows), torch.arange(rows)
    pool, expected = _pool(), _pool()
    TileHeads(_norm(), whole.product)(x, rotation, expected, slots)
    queries = TileHeads(_norm(), alone.product)(x, rotation, pool, slots)
    assert queries.shape == (rows, 0, HEAD_DIM)
    assert torch.equal(pool, expected)


@pytest.mark.parametrize("slot", [8 * PAGE, 10**9, -1])
def test_heads_are_stored_in_the_pool_alone(slot: int) -> None:
    heads, rotation, pool = TileHeads(_norm(), _qkv("blocks").product), _rotation(2), _pool()
    expected = _pool()
    x = torch.randn(2, HIDDEN)
    heads(x[:1], Rotation(rotation.cos[:1], rotation.sin[:1]), expected, torch.tensor([3]))
    with pytest.raises(IndexError, match="outside of the KV pool"):
        heads(x, rotation, pool, torch.tensor([3, slot]))
    assert torch.equal(pool, expected)


def test_activations_of_another_type_are_refused() -> None:
    gate = TileGate(_norm(), _linear("float32", 96).product)
    with pytest.raises(AssertionError):
        gate(torch.randn(2, HIDDEN, dtype=torch.bfloat16))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_bits_of_a_row_do_not_depend_on_other_rows_or_on_threads(
    kind: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.ops.compiled.thread_team._FEW_PRODUCTS", 0)  # no call runs alone
    norm, qkv, rotation = _norm(), _qkv(kind), _rotation(19)
    gate, heads = TileGate(norm, _linear(kind, 640).product), TileHeads(norm, qkv.product)
    x, slots = torch.randn(19, HIDDEN), torch.arange(19)
    gated, pool = gate(x), _pool()
    queries = heads(x, rotation, pool, slots)
    with torch_threads(threads):
        for num in range(1, 19):
            part, own = Rotation(rotation.cos[:num], rotation.sin[:num]), _pool()
            assert torch.equal(gate(x[:num]), gated[:num])
            assert torch.equal(heads(x[:num], part, own, slots[:num]), queries[:num])
            assert torch.equal(own.flatten(0, 1)[:num], pool.flatten(0, 1)[:num])


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_is_stored_in_keys_only(kind: str) -> None:
    heads, rotation, pool = TileHeads(_norm(), _qkv(kind).product), _rotation(2), _pool()
    x = torch.randn(2, HIDDEN)
    x[1, 5] = math.nan
    heads(x, rotation, pool, torch.arange(2))
    stored = pool.flatten(0, 1)
    assert stored[0].isfinite().all()
    assert stored[1, :KV_HEADS].isnan().all()
    assert not stored[1, KV_HEADS:].any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_norm_of_zeros_without_eps_stops_no_other_row(kind: str) -> None:
    norm, gate_up = make_norm(torch.ones(HIDDEN), 0.0), _linear(kind, 96).product
    x = torch.randn(3, HIDDEN)
    expected = TileGate(norm, gate_up)(x)
    x[1] = 0.0
    out = TileGate(norm, gate_up)(x)
    assert out[1].isnan().all()
    assert torch.equal(out[[0, 2]], expected[[0, 2]])
