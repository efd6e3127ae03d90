"""How the tensors of recurrent layers are stored, and how they are fused at load."""

from collections.abc import Iterator
from typing import Protocol

import torch

from outrider.models.family import RecurrentProjections
from outrider.models.recurrent.delta_layer import GatedDelta
from outrider.models.recurrent.recurrence import Recurrence
from outrider.ops.linear.any_weight import AnyWeight, rearrange_rows, stack_weights
from outrider.ops.linear.linear import Linear
from outrider.ops.norm_rope.rms_norm import make_norm
from outrider.ops.recurrent.delta_rule import DeltaRule

Shape = tuple[int, ...]

_FUSED = ("in_proj_qkvz.weight", "in_proj_ba.weight")
_APART = ("in_proj_qkv.weight", "in_proj_z.weight", "in_proj_b.weight", "in_proj_a.weight")


STACKED_QKV = ("in_proj_qkv.weight", "conv1d.weight")  # queries, keys, values, one below the other


class RecurrentReader(Protocol):
    """Reads tensors, and makes linear layers of them."""

    def read(self, *names: str) -> torch.Tensor:
        """The tensors, one below the other, on the device in the type of activations."""
        ...

    def read_wide(self, name: str) -> torch.Tensor:
        """A tensor that is computed with in float32, on the device."""
        ...

    def weight(self, *names: str) -> AnyWeight:
        """The weights of a linear layer, stacked, on the device; quantised if stored so."""
        ...

    def make_linear(self, weight: AnyWeight) -> Linear: ...


def recurrent_shapes(
    sizes: Recurrence, hidden: int, stored: RecurrentProjections
) -> Iterator[tuple[str, Shape]]:
    """Name below `linear_attn.` and shape of every tensor."""
    heads = sizes.value_heads
    fused = (sizes.qkv + sizes.values, 2 * heads)
    apart = (sizes.qkv, sizes.values, heads, heads)
    names, widths = (_FUSED, fused) if stored == "fused" else (_APART, apart)
    for name, rows in zip(names, widths, strict=True):
        yield name, (rows, hidden)
    yield "conv1d.weight", (sizes.qkv, 1, sizes.window)
    yield "A_log", (heads,)
    yield "dt_bias", (heads,)
    yield "norm.weight", (sizes.value_dim,)
    yield "out_proj.weight", (hidden, sizes.values)


def load_recurrent_layer(
    sizes: Recurrence,
    stored: RecurrentProjections,
    prefix: str,
    reader: RecurrentReader,
    *,
    eps: float,
    is_fixed: bool,
) -> GatedDelta:
    """The layer whose tensor names have this prefix."""
    if stored == "fused":
        wide, narrow = (reader.weight(prefix + name) for name in _FUSED)
        wide = rearrange_rows(wide, lambda rows: _ungroup(rows, sizes))
        narrow = rearrange_rows(narrow, lambda rows: _ungroup_gates(rows, sizes))
        channels = stack_weights([wide, narrow])
    else:
        channels = reader.weight(*(prefix + name for name in _APART))
    rule = DeltaRule(
        sizes=sizes,
        conv_weight=reader.read_wide(prefix + "conv1d.weight").squeeze(1),
        decay_scale=-reader.read_wide(prefix + "A_log").exp(),
        dt_bias=reader.read_wide(prefix + "dt_bias"),
        is_fixed=is_fixed,
    )
    return GatedDelta(
        rule,
        channels=reader.make_linear(channels),
        norm=make_norm(reader.read(prefix + "norm.weight"), eps),
        output=reader.make_linear(reader.weight(prefix + "out_proj.weight")),
    )


def _ungroup(weight: torch.Tensor, sizes: Recurrence) -> torch.Tensor:  # [rows, hidden] both
    """Queries of all heads, then keys, values, gates, from one stored group per key head."""
    values = sizes.values // sizes.key_heads
    groups = weight.view(sizes.key_heads, -1, weight.shape[1])
    parts = torch.split(groups, [sizes.key_dim, sizes.key_dim, values, values], dim=1)
    return torch.cat([part.flatten(0, 1) for part in parts])


def _ungroup_gates(weight: torch.Tensor, sizes: Recurrence) -> torch.Tensor:  # [rows, hidden] both
    """Betas of all heads, then decay gates, likewise."""
    groups = weight.view(sizes.key_heads, -1, weight.shape[1])
    return torch.cat([part.flatten(0, 1) for part in groups.chunk(2, dim=1)])
