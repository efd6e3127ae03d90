"""Bias and bans, added in place to the few scores they name, as in `logit_bias.py`."""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.sampling.sampling_columns import EditTables

# Slices of larger tensors: their alignment does not compile the kernel again.
_ANYWHERE = ["rows", "positions"]


@triton.jit(do_not_specialize_on_alignment=_ANYWHERE)
def _edit_kernel(
    scores,
    tokens,
    values,
    until,
    rows,
    positions,
    vocab,
    num_edits,
    EDITS: tl.constexpr,
    PDL: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    edits = tl.arange(0, EDITS)
    is_edit = edits < num_edits
    overlap.begin(PDL)
    first = tl.load(rows + place) * num_edits
    in_force = tl.load(positions + place) < tl.load(until + first + edits, mask=is_edit, other=0)
    in_force = in_force & is_edit
    token = tl.load(tokens + first + edits, mask=in_force, other=0)
    value = tl.load(values + first + edits, mask=in_force, other=0.0)
    is_ban = value == float("-inf")
    at = scores + place * vocab + token
    is_bias = in_force & (value > float("-inf"))
    tl.store(at, tl.load(at, mask=is_bias, other=0.0) + value, mask=is_bias)
    tl.debug_barrier()  # a token may be biased and banned, or banned twice: bans are added last
    is_ban = in_force & is_ban
    tl.store(at, tl.load(at, mask=is_ban, other=0.0) + value, mask=is_ban)


def add_bias_triton_(
    scores: torch.Tensor,  # [n, vocab] float32, contiguous; changed in place
    tables: EditTables,
    rows: torch.Tensor,  # [n] int64
    positions: torch.Tensor,  # [n] int64
) -> None:
    """`add_bias_` in one launch."""
    num_rows, vocab = scores.shape
    if not num_rows:
        return
    num_edits = tables.tokens.shape[1]
    kernel: Any = _edit_kernel[(num_rows,)]
    kernel(
        scores,
        tables.tokens,
        tables.values,
        tables.until,
        rows,
        positions,
        vocab,
        num_edits,
        EDITS=triton.next_power_of_2(num_edits),
        num_warps=8,
        PDL=overlap.is_on(scores),
        **overlap.options(scores),
    )
