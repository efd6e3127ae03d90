"""Writes of keys and values that are not finite: kernels and reference agree on what is stored."""

import math

import torch

from outrider.ops.attention.latent_rope import store_latents_reference
from outrider.ops.attention.latent_rope_triton import store_latents_triton
from outrider.ops.linear.qkv_projection_triton import qkv_projection_triton
from outrider.ops.norm_rope.head_norm import NoHeadNorm
from outrider.ops.norm_rope.rms_norm import RmsNorm
from outrider.ops.norm_rope.rotary import Rotation, rotate_and_store_reference
from outrider.ops.norm_rope.rotary_triton import rotate_and_store_triton
from support.latent_cases import rotation_at

ROWS, HEADS, KV_HEADS, DIM, PAGE = 6, 3, 2, 16, 4
BAD = {1: math.nan, 2: math.inf, 3: -math.inf}  # by token


def _slots(device: str) -> torch.Tensor:
    return torch.tensor([4, 9, 6, 5, 11, 8], device=device)


def _on_cpu(rotation: Rotation) -> Rotation:
    return Rotation(rotation.cos.float().cpu(), rotation.sin.float().cpu())


def check_heads(like: torch.Tensor) -> None:
    """A bad channel of a token's keys, values or both: its key says so."""
    torch.manual_seed(0)
    heads = torch.randn(ROWS, HEADS + 2 * KV_HEADS, DIM).to(like)
    for token, value in BAD.items():
        heads[token, HEADS:, 3 * token] = value
    heads[4, HEADS + KV_HEADS, 5] = math.nan  # a value alone
    rotation, slots = rotation_at(ROWS, DIM, like), _slots(str(like.device))
    layer = torch.full((3, PAGE, 2 * KV_HEADS, DIM), 7.0).to(like)
    right, wide = layer.float().cpu(), heads.float().cpu()
    rotate_and_store_reference(wide, _on_cpu(rotation), NoHeadNorm(), right, slots.cpu())
    rotate_and_store_triton(heads, rotation, NoHeadNorm(), layer, slots)
    got = layer.float().cpu()
    torch.testing.assert_close(got, right, atol=2e-2, rtol=2e-2, equal_nan=True)
    assert got[:, :, KV_HEADS:].isfinite().all()
    keys = got.flatten(0, 1)[slots.cpu(), :KV_HEADS]
    assert keys.isnan().any(2).all(1).tolist() == [token in BAD for token in range(ROWS)]
    assert keys[4, 0].isnan().any()
    assert keys[4, 1].isfinite().all()  # of another head
    assert not keys.isinf().any()


def check_projection(like: torch.Tensor) -> None:
    """A bad hidden state makes every key NaN and every value zero."""
    torch.manual_seed(0)
    x, size = torch.randn(ROWS, 32).to(like), (HEADS + 2 * KV_HEADS) * DIM
    for token, value in BAD.items():
        x[token, 3 * token] = value
    weight, nothing = torch.randn(size, 32).to(like), torch.empty(0).to(like)
    rotation, slots = rotation_at(ROWS, DIM, like), _slots(str(like.device))
    layer = torch.full((3, PAGE, 2 * KV_HEADS, DIM), 7.0).to(like)
    norm = RmsNorm(torch.ones(32).to(like), 1e-6)
    qkv_projection_triton(x, norm, weight, nothing, rotation, layer, slots)
    stored = layer.flatten(0, 1)[slots]
    for token in range(ROWS):
        keys, values = stored[token].chunk(2)
        assert keys.isnan().all() if token in BAD else keys.isfinite().all()
        assert (values == 0).all() if token in BAD else values.isfinite().all()


def check_bad_values(like: torch.Tensor) -> None:
    """A value overflows for two tokens, their keys do not: the hidden states become NaN."""
    torch.manual_seed(0)
    x, size = torch.randn(ROWS, 32).to(like), (HEADS + 2 * KV_HEADS) * DIM
    x[:, 5] = 0.0
    x[[1, 4], 5] = 4.0
    weight, nothing = torch.randn(size, 32).to(like), torch.empty(0).to(like)
    weight[-3, 5] = torch.finfo(like.dtype).max
    rotation, slots = rotation_at(ROWS, DIM, like), _slots(str(like.device))
    layer = torch.full((3, PAGE, 2 * KV_HEADS, DIM), 7.0).to(like)
    before = x.clone()
    qkv_projection_triton(x, RmsNorm(nothing, 1e-6), weight, nothing, rotation, layer, slots)
    assert x.isnan().any(1).tolist() == [token in (1, 4) for token in range(ROWS)]
    good = [token for token in range(ROWS) if token not in (1, 4)]
    assert torch.equal(x[good], before[good])
    assert layer.isfinite().all()


def check_latents(like: torch.Tensor) -> None:
    """A bad latent, and a bad key beside a good latent."""
    torch.manual_seed(0)
    latent, rope = 24, 8
    rows = torch.randn(ROWS, latent + rope).to(like)
    for token, value in BAD.items():
        rows[token, 5] = value
    rows[4, latent + 2] = math.inf
    rotation, slots = rotation_at(ROWS, rope, like), _slots(str(like.device))
    norm = RmsNorm(torch.rand(latent).to(like), 1e-6)
    layer = torch.full((3, PAGE, 1, latent + rope), 7.0).to(like)
    right = layer.float().cpu()
    on_cpu = RmsNorm(norm.weight.float().cpu(), norm.eps)
    wide = rows.float().cpu()
    store_latents_reference(wide, _on_cpu(rotation), on_cpu, right, slots.cpu())
    store_latents_triton(rows, rotation, norm, layer, slots)
    got = layer.float().cpu()
    torch.testing.assert_close(got, right, atol=2e-2, rtol=2e-2, equal_nan=True)
    assert got[..., :latent].isfinite().all()
    keys = got.flatten(0, 1)[slots.cpu(), 0, latent:]
    assert keys.isnan().all(1).tolist() == [token in BAD for token in range(ROWS)]
    assert keys[4].isnan().any()
    assert not keys.isinf().any()
