"""What the kernels of layers must do on any device: interpreted on a CPU, compiled on a GPU.

Inputs are of unit size. Kernels compute in float32 whatever the type and are compared with their
references in float32, so their error is that of rounding results (bfloat16: one part in 2^8 each).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from outrider.models.layers.rotary_embedding import RotaryEmbedding
from outrider.models.rope_config import RopeConfig
from outrider.models.rope_scaling import NoScaling, YarnScaling
from outrider.ops.linear.swiglu import swiglu_reference
from outrider.ops.linear.swiglu_triton import swiglu_triton
from outrider.ops.norm_rope.head_norm import HeadNorm, NoHeadNorm, NormEachHead
from outrider.ops.norm_rope.join_normed import join_normed_reference
from outrider.ops.norm_rope.join_normed_triton import join_normed_triton
from outrider.ops.norm_rope.layer_norm import layer_norm_reference
from outrider.ops.norm_rope.rms_norm import RmsNorm, rms_norm_reference
from outrider.ops.norm_rope.rms_norm_triton import (
    layer_norm_triton,
    rms_norm_triton,
    square_sums_triton,
)
from outrider.ops.norm_rope.rotary import (
    Rotation,
    rotate_and_store_reference,
    rotation_at_reference,
)
from outrider.ops.norm_rope.rotary_triton import rotate_and_store_triton, rotation_at_triton
from outrider.ops.norm_rope.shared_norm import square_sums_reference

EPS = 1e-5
PAGE_SIZE = 4
UNWRITTEN = -7.0  # what a pool holds where nothing is written

Case = tuple[str, torch.dtype]  # device and type


def random(*shape: int, like: Case, seed: int) -> torch.Tensor:
    """Normal numbers, the same on every device."""
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return numbers.to(*like)


def strided(*shape: int, like: Case, seed: int) -> torch.Tensor:
    """The same with rows that lie apart; NaN lies between them."""
    wide = torch.full((shape[0], shape[1] + 3, *shape[2:]), torch.nan).to(*like)
    view = wide[:, : shape[1]]
    view.copy_(random(*shape, like=like, seed=seed))
    return view


def assert_close(
    got: torch.Tensor, right: torch.Tensor, *, roundings: int, cancelled: float = 0.0
) -> None:
    """Equal up to float32 arithmetic and as many roundings to the type of `got`.

    Terms up to the size `cancelled` were rounded before they were added: this error is allowed.
    """
    unit = torch.finfo(got.dtype).eps / 2
    close = {"rtol": roundings * unit + 1e-5, "atol": cancelled * unit + 3e-6}
    torch.testing.assert_close(got.float(), right.float(), **close)


@contextmanager
def poisoned_outputs() -> Iterator[None]:
    """`torch.empty` returns NaN until it is written."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def check_norm(shape: tuple[int, ...], like: Case) -> None:
    """[n, dim] or [n, groups, dim], rows apart; the last row has the bits of that row alone."""
    x = strided(*shape, like=like, seed=1)
    weight = random(*shape[1:], like=like, seed=2)
    kernels = {rms_norm_triton: rms_norm_reference, layer_norm_triton: layer_norm_reference}
    for kernel, reference in kernels.items():
        with poisoned_outputs():
            normed = kernel(x, weight, EPS)
            alone = kernel(x[-1:], weight, EPS)
        assert normed.dtype == x.dtype
        assert_close(normed, reference(x.float(), weight.float(), EPS), roundings=2)
        assert torch.equal(alone, normed[-1:])


def check_square_sums(shape: tuple[int, int], like: Case) -> None:
    """[n, dim], rows apart; the last row has the bits of that row alone."""
    x = strided(*shape, like=like, seed=1)
    with poisoned_outputs():
        sums, alone = square_sums_triton(x), square_sums_triton(x[-1:])
    assert sums.dtype == torch.float32
    torch.testing.assert_close(sums, square_sums_reference(x), rtol=1e-5, atol=1e-6)
    assert torch.equal(alone, sums[-1:])


def check_joined_norms(num_rows: int, dim: int, like: Case) -> None:
    vocab = 11
    tokens = torch.randint(0, vocab, (num_rows,), generator=torch.Generator().manual_seed(3))
    tokens = tokens.to(like[0])
    embedding = random(vocab, dim, like=like, seed=4)
    hidden_states = strided(num_rows, dim, like=like, seed=5)
    norms = {
        "embedding_norm": RmsNorm(random(dim, like=like, seed=6), EPS),
        "hidden_norm": RmsNorm(random(dim, like=like, seed=7), 3 * EPS),
    }
    with poisoned_outputs():
        joined, normed = join_normed_triton(tokens, embedding, hidden_states, **norms)
        alone, _ = join_normed_triton(tokens[-1:], embedding, hidden_states[-1:], **norms)
    wide = {name: RmsNorm(norm.weight.float(), norm.eps) for name, norm in norms.items()}
    right, _ = join_normed_reference(tokens, embedding.float(), hidden_states.float(), **wide)
    assert_close(joined, right, roundings=2)
    assert torch.equal(normed, joined[:, dim:])
    assert torch.equal(alone, joined[-1:])


_SCALED = YarnScaling(
    factor=4.0, original_context=64, beta_fast=32.0, beta_slow=1.0, attention_factor=1.3
)


def check_angles(positions: list[int], head_dim: int, like: Case) -> None:
    """Cosines and sines of the reference on a CPU, each rounded once."""
    for scaling, share in ((NoScaling(), 1.0), (_SCALED, 0.5)):  # the rest is not scaled
        config = RopeConfig(theta=500_000.0, scaling=scaling, share=share)
        _check_angles(positions, config, head_dim, like)


def _check_angles(positions: list[int], config: RopeConfig, head_dim: int, like: Case) -> None:
    on_cpu, on_device = (
        RotaryEmbedding(config, head_dim=head_dim, dtype=like[1], device=torch.device(device))
        for device in ("cpu", like[0])
    )
    right = rotation_at_reference(torch.tensor(positions), on_cpu.frequencies)
    with poisoned_outputs():
        got = rotation_at_triton(torch.tensor(positions).to(like[0]), on_device.frequencies)
    assert got.cos.shape == right.cos.shape
    assert_close(got.cos.cpu(), right.cos, roundings=2)
    assert_close(got.sin.cpu(), right.sin, roundings=2)


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
    layer = torch.full(shape, UNWRITTEN).to(*like)
    wide_norm = _wide(norm) if has_norm else norm
    queries, pool = heads.float(), layer.float()
    wide_rotation = Rotation(rotation.cos.float(), rotation.sin.float())
    rotate_and_store_reference(queries, wide_rotation, wide_norm, pool, slots)
    before, alone, alone_layer = heads.clone(), heads[:1].clone(), layer.clone()

    rotate_and_store_triton(heads, rotation, norm, layer, slots)
    cancelled = 16.0 if has_norm else 0.0  # terms of the rotation of normalised heads
    assert_close(heads[:, :num_heads], queries[:, :num_heads], roundings=1, cancelled=cancelled)
    assert_close(layer[1:], pool[1:], roundings=1, cancelled=cancelled)  # page 0 is padding
    values = layer.flatten(0, 1)[slots[:-2], kv_heads:]
    assert torch.equal(values, before[:-2, num_heads + kv_heads :])
    first = Rotation(rotation.cos[:1], rotation.sin[:1])
    rotate_and_store_triton(alone, first, norm, alone_layer, slots[:1])
    assert torch.equal(alone[:, :num_heads], heads[:1, :num_heads])
    assert torch.equal(alone_layer.flatten(0, 1)[slots[0]], layer.flatten(0, 1)[slots[0]])


def check_swiglu(num_rows: int, width: int, like: Case) -> None:
    gate_up = strided(num_rows, 2 * width, like=like, seed=9) * 4
    with poisoned_outputs():
        out = swiglu_triton(gate_up)
        alone = swiglu_triton(gate_up[-1:])
    assert_close(out, swiglu_reference(gate_up.float()), roundings=1)
    assert torch.equal(alone, out[-1:])
    limited = swiglu_reference(gate_up.float(), 0.5)
    assert_close(swiglu_triton(gate_up, 0.5), limited, roundings=1)


def _head_norm(num_heads: int, head_dim: int, like: Case, *, has_norm: bool) -> HeadNorm:
    if not has_norm:
        return NoHeadNorm()
    return NormEachHead(RmsNorm(random(num_heads, head_dim, like=like, seed=10), EPS))


def _wide(norm: HeadNorm) -> HeadNorm:
    """The same in float32."""
    return NormEachHead(RmsNorm(norm.weight.float(), norm.eps))


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
