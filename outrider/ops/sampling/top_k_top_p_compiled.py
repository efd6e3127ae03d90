"""`filter_floors` on a CPU: one compiled call, a row a thread, with the bits of the reference."""

import torch

from outrider.ops.compiled.floors_of_rows import find_floors
from outrider.ops.compiled.highest_place import NUM_BINS
from outrider.ops.compiled.thread_team import run_alone, run_team
from outrider.ops.graph_break import graph_break
from outrider.ops.sampling.sampling_columns import FilterTables

_FUNCTION = int(find_floors.address)


def filter_floors_compiled(
    scores: torch.Tensor,  # [n, vocab] float32, unit stride along the vocabulary
    tables: FilterTables,
    rows: torch.Tensor,  # [n] int64
) -> torch.Tensor:  # [n] float32
    floors = scores.new_empty(scores.shape[0])
    graph_break(_find, scores, tables, rows, floors)
    return floors


def _find(
    scores: torch.Tensor,  # [n, vocab]
    tables: FilterTables,
    rows: torch.Tensor,  # [n]
    floors: torch.Tensor,  # [n] written
) -> None:
    assert scores.stride(1) == 1, "unit stride along the vocabulary"
    num, width = scores.shape
    threads = min(num, torch.get_num_threads())
    rows = rows.contiguous()
    reals = tables.temperature, tables.top_p, tables.log_min_p
    assert len({each.stride(0) for each in reals}) == 1, "columns of one table"
    places = torch.empty(threads, width, dtype=torch.int32)
    weights, bins = (torch.empty(threads, each, dtype=torch.int64) for each in (width, NUM_BINS))
    given = (num, width, scores.stride(0), scores.data_ptr(), rows.data_ptr())
    columns = (*(each.data_ptr() for each in reals), tables.top_k.data_ptr())
    strides = reals[0].stride(0), tables.top_k.stride(0)
    scratch = places.data_ptr(), weights.data_ptr(), bins.data_ptr()
    run = run_alone if threads <= 1 else run_team
    run(_FUNCTION, (*given, *columns, *strides, *scratch, floors.data_ptr()))
