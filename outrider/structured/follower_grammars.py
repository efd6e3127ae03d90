"""The grammars of a rank other than the first: rank 0 makes the masks and sends them."""

from collections.abc import Sequence

import torch

from outrider.step.shape import StepShape
from outrider.structured.grammar_cache import NO_GRAMMARS, Grammars
from outrider.structured.grammar_matcher import WORD
from outrider.structured.row_grammars import StepTokens
from outrider.wire.failure import RequestFailure
from outrider.wire.scheduled_batch import RowAdmission, ScheduledBatch


class FollowerGrammars:
    """Knows which rows have a grammar. No grammar is compiled or matched here."""

    grammars: Grammars = NO_GRAMMARS

    def __init__(self, *, largest: StepShape, vocab: int, device: torch.device) -> None:
        self._size = (largest.num_sampled, -(-vocab // WORD))
        self._masks = torch.empty(0, dtype=torch.int32, device=device)  # until a grammar needs it
        self._rows: set[int] = set()

    @property
    def mask_bytes(self) -> int:
        places, words = self._size
        return places * words * torch.int32.itemsize

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        for admission in admissions:
            self._rows.discard(admission.row)
            if admission.sampling.grammar.is_wanted:
                self._rows.add(admission.row)

    def begin(self, batch: ScheduledBatch) -> bool:
        emitting = {*batch.decodes.rows, *(c.row for c in batch.chunks if c.is_last)}
        return bool(self._rows & emitting)

    def end(self, output: StepTokens) -> dict[int, RequestFailure]:
        del output
        return {}

    def forget(self) -> None:
        self._rows.clear()

    def masks(self, shape: StepShape) -> torch.Tensor:
        if not self._masks.numel():
            self._masks = self._masks.new_zeros(self._size)
        return self._masks[: shape.num_sampled]

    def send_trees(self, packed: torch.Tensor, shape: StepShape) -> None:
        pass

    def write_masks(self, masks: torch.Tensor) -> None:
        pass
