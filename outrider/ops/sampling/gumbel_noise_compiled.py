"""Gumbel noise on a CPU with the bits of `gumbel_noise.py`, in one compiled call."""

import torch

from outrider.ops.compiled.gumbel_rows import draw_gumbel
from outrider.ops.compiled.thread_team import run_team
from outrider.ops.graph_break import graph_break

_FUNCTION = int(draw_gumbel.address)


def gumbel_compiled(
    seeds: torch.Tensor,  # [n] int64
    positions: torch.Tensor,  # [n] int64
    vocab: int,
    first: int,
) -> torch.Tensor:  # [n, vocab] float32
    """The noise of neighbouring tokens."""
    return _drawn(seeds, positions, seeds.new_empty(seeds.shape[0], 0), vocab, first)


def gumbel_at_compiled(
    seeds: torch.Tensor,  # [n] int64
    positions: torch.Tensor,  # [n] int64
    tokens: torch.Tensor,  # [n, k] int32 or int64
) -> torch.Tensor:  # [n, k] float32
    """The noise of the given tokens of each row."""
    if tokens.shape[1] > 1 and tokens.stride(1) != 1:
        tokens = tokens.contiguous()
    return _drawn(seeds, positions, tokens, tokens.shape[1], 0)


def _drawn(
    seeds: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor, width: int, first: int
) -> torch.Tensor:  # [n, width]
    noise = torch.empty(seeds.shape[0], width, dtype=torch.float32)
    graph_break(_draw, seeds.contiguous(), positions.contiguous(), tokens, first, noise)
    return noise


def _draw(
    seeds: torch.Tensor,
    positions: torch.Tensor,
    tokens: torch.Tensor,  # [n, k], or [n, 0]: those from `first` on
    first: int,
    noise: torch.Tensor,  # [n, k] written
) -> None:
    ids = tokens.data_ptr(), tokens.itemsize, tokens.stride(0)
    if not tokens.shape[1]:
        ids = 0, 0, 0
    operands = seeds.data_ptr(), positions.data_ptr(), noise.data_ptr()
    run_team(_FUNCTION, (*noise.shape, *operands, *ids, first))
