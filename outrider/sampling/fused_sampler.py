"""The law of sampling by the fused kernels of a GPU: the tokens of `choose`, bit for bit.

Logits are read in their own type. Kernels are imported where they run: a CPU has no Triton.
"""

import torch

from outrider.ops.sampling.sampling_columns import (
    EditTables,
    FilterTables,
    NoNoise,
    PenaltyTables,
    RowNoise,
)
from outrider.sampling.sampling_table import SamplingTable
from outrider.step.shape import SamplingFlags


def choose_fused(
    logits: torch.Tensor,  # [n, vocab] of any float
    table: SamplingTable,
    rows: torch.Tensor,  # [n] int64
    positions: torch.Tensor,  # [n] int64
    path: torch.Tensor,  # [n, depth] int64
    sampling_flags: SamplingFlags,
) -> torch.Tensor:  # [n] int64
    """The token of each row. Only penalties and bias copy the vocabulary, and only once."""
    from outrider.ops.sampling.choose_token_triton import choose_tokens

    scores = logits
    if sampling_flags.penalties:
        scores = _penalised(scores, table, rows, path)
    if sampling_flags.bias:
        scores = scores.float().contiguous()
        _edit_(scores, table, rows, positions)
    floors = floors_of(scores, table, rows) if sampling_flags.filters else table.top_p[:0]
    noise = noise_of(table, rows, positions) if sampling_flags.noise else NoNoise(unread=rows)
    return choose_tokens(scores, noise, floors)


def noise_of(
    table: SamplingTable,
    rows: torch.Tensor,  # [n] int64
    positions: torch.Tensor,  # [n] int64
) -> RowNoise:
    return RowNoise(
        seeds=table.seed, temperatures=table.temperature, rows=rows, positions=positions
    )


def floors_of(
    scores: torch.Tensor,  # [n, vocab] of any float
    table: SamplingTable,
    rows: torch.Tensor,  # [n] int64
) -> torch.Tensor:  # [n] float32
    """The score below which top-k, top-p or min-p of each row rules a token out."""
    from outrider.ops.sampling.top_k_top_p_triton import filter_floors

    tables = FilterTables(
        temperature=table.temperature,
        top_p=table.top_p,
        log_min_p=table.log_min_p,
        top_k=table.top_k,
    )
    return filter_floors(scores, tables, rows)


def _penalised(
    logits: torch.Tensor,  # [n, vocab] of any float
    table: SamplingTable,
    rows: torch.Tensor,  # [n] int64
    path: torch.Tensor,  # [n, depth] int64
) -> torch.Tensor:  # [n, vocab] float32
    from outrider.ops.sampling.penalties_triton import penalise

    tables = PenaltyTables(
        output_counts=table.output_counts,
        prompt_seen=table.prompt_seen,
        repetition=table.repetition,
        presence=table.presence,
        frequency=table.frequency,
    )
    return penalise(logits, tables, rows, path.contiguous())


def _edit_(
    scores: torch.Tensor,  # [n, vocab] float32
    table: SamplingTable,
    rows: torch.Tensor,  # [n] int64
    positions: torch.Tensor,  # [n] int64
) -> None:
    from outrider.ops.sampling.logit_bias_triton import edit_

    tables = EditTables(tokens=table.edit_tokens, values=table.edit_values, until=table.edit_until)
    edit_(scores, tables, rows, positions)
