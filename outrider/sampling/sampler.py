"""The law of sampling: the token is a function of (logits, seed, position).

In order: the grammar's mask (`mask.py`, before this file is asked), penalties, bias, bans,
temperature, top-k, top-p, min-p; then noise, then argmax.
"""

import torch

from outrider.ops.sampling.gumbel_noise import gumbel
from outrider.sampling.fused_sampler import choose_fused
from outrider.sampling.logits_processing import column, edit_, filter_, penalise_
from outrider.sampling.sampling_table import SamplingTable
from outrider.step.shape import SamplingFlags


def choose_tokens(
    logits: torch.Tensor,  # [n, vocab] float32 on a CPU, any float on a GPU; may be overwritten
    table: SamplingTable,
    rows: torch.Tensor,  # [n] int64
    positions: torch.Tensor,  # [n] int64 absolute position of the token being chosen
    path: torch.Tensor,  # [n, depth] int64 tokens from below node 0 to the node, padded with -1
    sampling_flags: SamplingFlags,
) -> torch.Tensor:  # [n] int64
    """The token of each row: argmax of z / temperature + g, the lowest id if several are equal.

    Computed as argmax of z + temperature * g, which is the same and needs no case for 0.
    """
    if logits.is_cuda:
        return choose_fused(logits, table, rows, positions, path, sampling_flags)
    if sampling_flags.penalties:
        penalise_(logits, table, rows, path)
    if sampling_flags.bias:
        edit_(logits, table, rows, positions)
    if sampling_flags.filters:
        filter_(logits, table, rows)
    if sampling_flags.noise:
        noise = gumbel(table.seed.index_select(0, rows), positions, table.vocab)
        logits.add_(noise.mul_(column(table.temperature, rows)))
    return logits.argmax(1)
