"""What the kernels of layers must do on any device: interpreted on a CPU, compiled on a GPU.

Inputs are of unit size. Kernels compute in float32 whatever the type and are compared with the
torch law in float32, so their error is that of rounding results (bfloat16: one part in 2^8 each).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F

from outrider.kv.kv_pool import write_kv
from outrider.models.layers.rms_norm import RmsNorm
from outrider.models.layers.rotary import RotaryEmbedding, Rotation, rotate_, scaled_frequencies
from outrider.models.model_config import RopeConfig
from outrider.models.rope_scaling import NoScaling
from outrider.ops.linear.swiglu_triton import swiglu
from outrider.ops.norm_rope.rms_norm_triton import join_normed, rms_norm
from outrider.ops.norm_rope.rotary_triton import angles_at, rotate_and_store

EPS = 1e-5
PAGE_SIZE = 4
BYSTANDER = -7.0  # what a pool holds where nothing is written

Case = tuple[str, torch.dtype]  # device and type


def random(*shape: int, like: Case, seed: int) -> torch.Tensor:
    """Normal numbers, the same on every device."""
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return numbers.to(*like)


def strided(*shape: int, like: Case, seed: int) -> torch.Tensor:
    """The same with rows that lie apart; what lies between them is not a number."""
    wide = torch.full((shape[0], shape[1] + 3, *shape[2:]), torch.nan).to(*like)
    view = wide[:, : shape[1]]
    view.copy_(random(*shape, like=like, seed=seed))
    return view


def assert_close(
    got: torch.Tensor, law: torch.Tensor, *, roundings: int, cancelled: float = 0.0
) -> None:
    """Equal up to float32 arithmetic and as many roundings to the type of `got`.

    Where terms up to the size `cancelled` were rounded before they were added, so much the less.
    """
    unit = torch.finfo(got.dtype).eps / 2
    close = {"rtol": roundings * unit + 1e-5, "atol": cancelled * unit + 3e-6}
    torch.testing.assert_close(got.float(), law.float(), **close)


@contextmanager
def poisoned_outputs() -> Iterator[None]:
    """What `torch.empty` hands out holds no number until it is written."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def check_norm(shape: tuple[int, ...], like: Case) -> None:
    """[n, dim] or [n, groups, dim], rows apart; the last of one row is the row alone."""
    x = strided(*shape, like=like, seed=1)
    weight = random(*shape[1:], like=like, seed=2)
    with poisoned_outputs():
        normed = rms_norm(x, weight, EPS)
        alone = rms_norm(x[-1:], weight, EPS)
    assert normed.dtype == x.dtype
    assert_close(normed, RmsNorm(weight.float(), EPS)(x.float()), roundings=2)
    assert torch.equal(alone, normed[-1:])


def check_joined_norms(num_rows: int, dim: int, like: Case) -> None:
    vocab = 11
    tokens = torch.randint(0, vocab, (num_rows,), generator=torch.Generator().manual_seed(3))
    tokens = tokens.to(like[0])
    embedding = random(vocab, dim, like=like, seed=4)
    state = strided(num_rows, dim, like=like, seed=5)
    weights = random(dim, like=like, seed=6), random(dim, like=like, seed=7)
    eps = EPS, 3 * EPS
    with poisoned_outputs():
        joined, normed = join_normed(tokens, embedding, state, weights=weights, eps=eps)
        alone, _ = join_normed(tokens[-1:], embedding, state[-1:], weights=weights, eps=eps)
    left = RmsNorm(weights[0].float(), eps[0])(F.embedding(tokens, embedding).float())
    right = RmsNorm(weights[1].float(), eps[1])(state.float())
    assert_close(joined, torch.cat([left, right], dim=-1), roundings=2)
    assert torch.equal(normed, joined[:, dim:])
    assert torch.equal(alone, joined[-1:])


def check_angles(positions: list[int], head_dim: int, like: Case) -> None:
    """Cosines and sines as the torch law gives them on a CPU, each rounded once."""
    config = RopeConfig(theta=500_000.0, scaling=NoScaling())
    law = RotaryEmbedding(config, head_dim=head_dim, dtype=like[1], device=torch.device("cpu"))
    right = law.at(torch.tensor(positions))
    frequencies = scaled_frequencies(config, head_dim).to(like[0])
    with poisoned_outputs():
        cos, sin = angles_at(torch.tensor(positions).to(like[0]), frequencies, 1.0, like[1])
    assert cos.shape == right.cos.shape
    assert_close(cos.cpu(), right.cos, roundings=2)
    assert_close(sin.cpu(), right.sin, roundings=2)


def check_rotate_and_store(
    num_query: int, sizes: tuple[int, int, int], like: Case, *, has_norm: bool
) -> None:
    """Sizes are heads, kv_heads and head_dim. The last two tokens are padding: both at slot 0."""
    num_heads, kv_heads, head_dim = sizes
    heads = strided(num_query, num_heads + 2 * kv_heads, head_dim, like=like, seed=8)
    norm = _head_norm(num_heads + kv_heads, head_dim, like, has_norm=has_norm)
    rotation = _rotation(num_query, head_dim, like)
    slots = _slots(num_query).to(like[0])
    shape = (num_query // PAGE_SIZE + 3, PAGE_SIZE, 2 * kv_heads, head_dim)
    layer = torch.full(shape, BYSTANDER).to(*like)
    queries, pool = _law(heads.float(), rotation, norm, layer.float(), slots, num_heads)
    before, alone, alone_layer = heads.clone(), heads[:1].clone(), layer.clone()

    angles = rotation.cos, rotation.sin
    rotate_and_store(heads, angles, norm, layer, slots)
    cancelled = 16.0 if has_norm else 0.0  # terms of the rotation of normalised heads
    assert_close(heads[:, :num_heads], queries, roundings=1, cancelled=cancelled)
    assert_close(layer[1:], pool[1:], roundings=1, cancelled=cancelled)  # page 0 is nobody's
    values = layer.flatten(0, 1)[slots[:-2], kv_heads:]
    assert torch.equal(values, before[:-2, num_heads + kv_heads :])
    rotate_and_store(alone, (angles[0][:1], angles[1][:1]), norm, alone_layer, slots[:1])
    assert torch.equal(alone[:, :num_heads], heads[:1, :num_heads])
    assert torch.equal(alone_layer.flatten(0, 1)[slots[0]], layer.flatten(0, 1)[slots[0]])


def check_swiglu(num_rows: int, width: int, like: Case) -> None:
    gate_up = strided(num_rows, 2 * width, like=like, seed=9) * 4
    with poisoned_outputs():
        out = swiglu(gate_up)
        alone = swiglu(gate_up[-1:])
    gate, up = gate_up.float().chunk(2, dim=-1)
    assert_close(out, F.silu(gate) * up, roundings=1)
    assert torch.equal(alone, out[-1:])
    limited = F.silu(gate.clamp(max=0.5)) * up.clamp(-0.5, 0.5)
    assert_close(swiglu(gate_up, 0.5), limited, roundings=1)


def _head_norm(
    num_heads: int, head_dim: int, like: Case, *, has_norm: bool
) -> tuple[torch.Tensor, float]:
    rows = num_heads if has_norm else 0
    return random(rows, head_dim, like=like, seed=10), EPS


def _rotation(num_query: int, head_dim: int, like: Case) -> Rotation:
    config = RopeConfig(theta=10_000.0, scaling=NoScaling())
    rotary = RotaryEmbedding(config, head_dim=head_dim, dtype=like[1], device=torch.device("cpu"))
    rotation = rotary.at(torch.arange(num_query) * 7)
    return Rotation(rotation.cos.to(like[0]), rotation.sin.to(like[0]))


def _slots(num_query: int) -> torch.Tensor:
    """Pages 1 and up in a random order; slot 0 for the last two."""
    shuffled = torch.randperm(num_query, generator=torch.Generator().manual_seed(11)) + PAGE_SIZE
    shuffled[-2:] = 0
    return shuffled


def _law(
    heads: torch.Tensor,  # float32, as all that follow
    rotation: Rotation,
    norm: tuple[torch.Tensor, float],
    layer: torch.Tensor,
    slots: torch.Tensor,
    num_heads: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and pool as the torch operations of `models/layers` leave them."""
    heads, weight = heads.clone(), norm[0].float()
    rotated = heads[:, : heads.shape[1] - layer.shape[2] // 2]
    if len(weight):
        rotated.copy_(RmsNorm(weight, norm[1])(rotated))
    rotate_(rotated, Rotation(rotation.cos.float(), rotation.sin.float()))
    write_kv(layer, slots, heads[:, num_heads:])
    return heads[:, :num_heads], layer
