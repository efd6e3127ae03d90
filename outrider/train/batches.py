"""The batch of a training step. It depends on the seed and the step number only."""

from dataclasses import dataclass

import numpy as np
import torch

from outrider.errors import ConfigError
from outrider.train.packing import AHEAD, PackedDocuments, reached_rows, trained_rows
from outrider.train.training_device import TrainingDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchors:
    """The rows of a batch that are trained, as indices into the flattened [batch * length]."""

    rows: tuple[torch.Tensor, ...]  # per depth [trained]; each is a subset of the one before
    teacher_rows: torch.Tensor  # [teacher] rows whose target probabilities are needed
    teacher_index: tuple[torch.Tensor, ...]  # per depth [trained] index into `teacher_rows`
    reached: torch.Tensor  # [batch * length] 1 where greedy decoding starts a draft round, else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBatch:
    """The sequences of one step."""

    tokens: torch.Tensor  # [batch, length]
    documents: torch.Tensor  # [batch, length] number within the sequence, or PADDING
    positions: torch.Tensor  # [batch, length]
    anchors: Anchors


class BatchOrder:
    """Owns the order of the sequences. Each epoch is a new shuffle of whole sequences."""

    def __init__(self, packed: PackedDocuments, *, size: int, seed: int) -> None:
        if len(packed) < size:
            raise ConfigError(
                f"the answers fill {len(packed)} sequences and a batch takes {size}; give more "
                "prompts, or lower --batch or --length"
            )
        self.packed = packed
        self.per_epoch = len(packed) // size
        self._size = size
        self._seed = seed

    def at(self, step: int) -> PackedDocuments:
        epoch, place = divmod(step, self.per_epoch)
        order = np.random.default_rng((self._seed, epoch)).permutation(len(self.packed))
        return self.packed.take(order[place * self._size : (place + 1) * self._size])


def make_batch(packed: PackedDocuments, *, depth: int, device: TrainingDevice) -> TrainingBatch:
    """The sequences on the device. The host finds their rows, so no step waits for the device."""
    trained = trained_rows(packed, depth=depth).reshape(depth, -1)
    rows = [np.flatnonzero(mask) for mask in trained]
    # At depth k row t predicts the token at t + 2 + k. Its teacher is the target's row before that.
    teacher_rows = np.unique(np.concatenate([each + AHEAD - 1 + k for k, each in enumerate(rows)]))
    reached = reached_rows(packed) & packed.is_greedy

    return TrainingBatch(
        tokens=device.copy(packed.tokens.astype(np.int64)),
        documents=device.copy(packed.documents),
        positions=device.copy(packed.positions.astype(np.int64)),
        anchors=Anchors(
            rows=tuple(device.copy(each) for each in rows),
            teacher_index=tuple(
                device.copy(np.searchsorted(teacher_rows, each + AHEAD - 1 + k))
                for k, each in enumerate(rows)
            ),
            teacher_rows=device.copy(teacher_rows),
            reached=device.copy(reached.reshape(-1).astype(np.int64)),
        ),
    )
