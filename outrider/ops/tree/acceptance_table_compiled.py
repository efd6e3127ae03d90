"""`calibrate_` and `count_accepted_` on a CPU, each in one compiled call."""

import torch

from outrider.ops.compiled.draft_chances import calibrate_candidates, count_accepted_drafts
from outrider.ops.compiled.thread_team import run_alone
from outrider.ops.graph_break import graph_break
from outrider.ops.tree.acceptance_table import AcceptanceTable
from outrider.ops.tree.candidates import Candidates, SelectedTree

_CALIBRATE = int(calibrate_candidates.address)
_COUNT = int(count_accepted_drafts.address)


def calibrate_compiled_(
    candidates: Candidates,  # scores are written
    kinds: torch.Tensor,  # [rows, width]
    table: AcceptanceTable,
    *,
    steps: int,
) -> torch.Tensor:  # [rows, width]
    del steps  # parents come before their children
    entries = candidates.parents.new_empty(candidates.parents.shape)
    if kinds.shape[1] > 1 and kinds.stride(1) != 1:
        kinds = kinds.contiguous()
    graph_break(_calibrate, candidates, kinds, table, entries)
    return entries


def _calibrate(
    candidates: Candidates,
    kinds: torch.Tensor,
    table: AcceptanceTable,
    entries: torch.Tensor,  # [rows, width] written
) -> None:
    strided = candidates.scores, candidates.parents, kinds
    sizes = *candidates.scores.shape, *(tensor.stride(0) for tensor in strided)
    tensors = (*strided, table.tried, table.accepted, entries)
    run_alone(_CALIBRATE, (*sizes, *(tensor.data_ptr() for tensor in tensors)))


def count_accepted_compiled_(
    table: AcceptanceTable,  # written
    entries: torch.Tensor,  # [rows, width]
    selected: SelectedTree,
    path: torch.Tensor,  # [rows, most_emitted]
) -> None:
    graph_break(_count, table, entries, selected, path)


def _count(
    table: AcceptanceTable, entries: torch.Tensor, selected: SelectedTree, path: torch.Tensor
) -> None:
    parents, numbers = selected.tree.parents, selected.numbers.contiguous()
    read = (entries.contiguous(), numbers, parents, path.contiguous())
    sizes = *entries.shape, numbers.shape[1], path.shape[1]
    addresses = (tensor.data_ptr() for tensor in read)
    written = table.tried.data_ptr(), table.accepted.data_ptr()
    run_alone(_COUNT, (*sizes, *addresses, parents.stride(0), *written))
