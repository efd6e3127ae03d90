"""Compresses blocks of tokens to one entry each."""

from dataclasses import dataclass

import torch

from outrider.ops.norm_rope.partial_rope import TailRotation, VectorNorm, norm_and_rotate
from outrider.ops.sparse.compressed_index import BlockPlan
from outrider.ops.sparse.ring_tokens import RingTokens


@dataclass(frozen=True, slots=True)
class Compressor:
    """Weights that make an entry of a window of compressor states."""

    bias: torch.Tensor  # [window, width] float32, added to gates by place in the window
    norm: VectorNorm


def store_entries(
    tokens: RingTokens,  # of width 2 * series * width: a value and a gate per channel
    block: BlockPlan,
    compressor: Compressor,
    rotation: TailRotation,  # at the starts of the blocks
    pool: torch.Tensor,  # [entries, width]
) -> None:
    """Write the entries of all blocks that end in this step: compressed, normalised, rotated."""
    if pool.is_cuda:
        from outrider.ops.sparse.compress_triton import store_entries_triton

        store_entries_triton(tokens, block, compressor, rotation, pool)
    else:
        store_entries_reference(tokens, block, compressor, rotation, pool)


def store_entries_reference(
    tokens: RingTokens,
    block: BlockPlan,
    compressor: Compressor,
    rotation: TailRotation,
    pool: torch.Tensor,
) -> None:
    """The same in torch."""
    pooled = compress(tokens, block.ring.sources, compressor.bias)[:, None]
    entries = norm_and_rotate(pooled, compressor.norm, rotation).squeeze(1)
    pool.index_copy_(0, block.targets, entries.to(pool.dtype))


def compress(
    tokens: RingTokens,
    sources: torch.Tensor,  # [windows, window]
    bias: torch.Tensor,  # [window, width] float32
) -> torch.Tensor:  # [windows, width] float32
    """The mean of every window, each channel weighted by a softmax of its gates.

    With two series, the first half of a window reads the first and the second half the second.
    """
    width = bias.shape[1]
    states = tokens.read(sources).float().view(*sources.shape, 2, -1, width)
    if states.shape[3] == 2:  # [windows, window, value and gate, series, width]
        first, second = states.chunk(2, dim=1)
        states = torch.cat([first[:, :, :, 0], second[:, :, :, 1]], dim=1)
    else:
        states = states.squeeze(3)
    value, gate = states.unbind(2)  # [windows, window, width]
    is_absent = (sources < 0)[..., None]  # its state is arbitrary and can hold NaN
    gate = (gate + bias).masked_fill(is_absent, float("-inf"))
    # A softmax of torch over an axis that is not the last depends on how threads divide the others.
    shares = (gate - gate.amax(1, keepdim=True)).exp_()
    return (value.masked_fill(is_absent, 0.0) * shares).sum(1) / shares.sum(1)
