"""Snapshots of row state on the device: by them the prefix cache continues a text at a page border.

The tensors are those of every pool, as transfers ship them. What a drafter keeps per row besides
is not copied: pages are shared only where all draft KV in them follows from the shared text.
"""

from collections.abc import Iterable, Sequence

import torch

from outrider.step.zeroed_memory import zeroed
from outrider.wire.scheduled_batch import RowSnapshot


class RowSnapshots:
    """Owns the copies. Slots are numbered from 1; all calls are made in the runner's stream."""

    def __init__(self, tensors: Iterable[torch.Tensor], num: int) -> None:  # [table_rows, ...] each
        # One call copies all tensors of a type at once: there are hundreds.
        by_type: dict[torch.dtype, list[torch.Tensor]] = {}
        for each in tensors:
            if each.numel() and num:
                by_type.setdefault(each.dtype, []).append(each)
        self._groups = [_SnapshotGroup(own, num) for own in by_type.values()]

    def save(self, snapshots: Sequence[RowSnapshot]) -> None:
        """Copy the state of rows, after the step that they ran in."""
        if snapshots:
            for group in self._groups:
                group.save(snapshots)

    def restore(self, row: int, slot: int) -> None:
        """Write a copy into a row, before a step that runs it."""
        for group in self._groups:
            group.restore(row, slot)


class _SnapshotGroup:
    """Tensors of one type, and their copies."""

    def __init__(self, tensors: Sequence[torch.Tensor], num: int) -> None:
        self._tensors = tensors
        self._copies = [
            zeroed(num, *each.shape[1:], dtype=each.dtype, device=each.device) for each in tensors
        ]

    def save(self, snapshots: Sequence[RowSnapshot]) -> None:
        torch._foreach_copy_(
            [own[each.slot - 1] for each in snapshots for own in self._copies],
            [own[each.row] for each in snapshots for own in self._tensors],
        )

    def restore(self, row: int, slot: int) -> None:
        torch._foreach_copy_(
            [own[row] for own in self._tensors], [own[slot - 1] for own in self._copies]
        )
