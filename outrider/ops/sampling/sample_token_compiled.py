"""`sample_token` on a CPU: filter, noise and the search for the best score in one compiled call."""

import torch

from outrider.ops.compiled.best_of_rows import PART_SCORES
from outrider.ops.compiled.noisy_best_of_rows import find_noisy_best
from outrider.ops.compiled.thread_team import run_team
from outrider.ops.graph_break import graph_break
from outrider.ops.sampling.sampling_columns import RowNoise

_FUNCTION = int(find_noisy_best.address)


def noisy_best_compiled(
    scores: torch.Tensor,  # [n, width] float32, unit stride along the vocabulary
    noise: RowNoise,
    floors: torch.Tensor,  # [n] float32, or [0] if nothing is filtered
    first: int,  # token of the first column
) -> tuple[torch.Tensor, torch.Tensor]:  # [n] column and score
    columns = scores.new_empty(scores.shape[0], dtype=torch.int64)
    values = scores.new_empty(scores.shape[0])
    graph_break(_find, scores, noise, floors, first, columns, values)
    return columns, values


def _find(
    scores: torch.Tensor,  # [n, width]
    noise: RowNoise,
    floors: torch.Tensor,  # [n] or [0]
    first: int,
    columns: torch.Tensor,  # [n] written
    values: torch.Tensor,  # [n] written
) -> None:
    assert scores.stride(1) == 1, "unit stride along the vocabulary"
    rows, width = scores.shape
    parts = rows * -(-width // PART_SCORES)
    of_parts, places = torch.empty(parts), torch.empty(parts, dtype=torch.int64)
    noisy = torch.empty(torch.get_num_threads(), PART_SCORES)
    tokens = torch.empty_like(noisy, dtype=torch.int32)
    chosen, positions, floors = (
        each.contiguous() for each in (noise.rows, noise.positions, floors)
    )
    floors_at = floors.data_ptr() if floors.shape[0] else 0
    given = rows, width, scores.stride(0), first, scores.data_ptr(), floors_at
    tables = noise.seeds, noise.temperatures
    strides = tuple(each.stride(0) for each in tables)
    tensors = tuple(each.data_ptr() for each in (chosen, positions, *tables))
    written = (each.data_ptr() for each in (of_parts, places, columns, values, tokens, noisy))
    run_team(_FUNCTION, (*given, *tensors, *strides, *written))
