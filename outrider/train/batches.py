"""The batch of a training step. It depends on the seed and the step number only."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
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
    chosen: torch.Tensor  # [batch, anchors] rows of the sequences; without a choice there are none
    places: tuple[torch.Tensor, ...]  # per depth [trained] index into the flattened `chosen`


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBatch:
    """The sequences of one step."""

    tokens: torch.Tensor  # [batch, length]
    documents: torch.Tensor  # [batch, length] number within the sequence, or PADDING
    positions: torch.Tensor  # [batch, length]
    anchors: Anchors


class BatchOrder:
    """Owns the order of the sequences. Each epoch is a new shuffle of whole sequences.

    The target's states of the first `num_kept` sequences may be kept. They share no batch with the
    others, so that a batch needs the target or does not.
    """

    def __init__(self, packed: PackedDocuments, *, size: int, seed: int, num_kept: int = 0) -> None:
        if len(packed) < size:
            raise ConfigError(
                f"the answers fill {len(packed)} sequences and a batch takes {size}; give more "
                "prompts, or lower --batch or --length"
            )
        self.packed = packed
        self.num_kept = num_kept if min(num_kept, len(packed) - num_kept) >= size else 0
        self.per_epoch = sum(part // size for part in self._parts)
        self._size, self._seed = size, seed
        self._epoch, self._batches = -1, np.zeros((0, size), dtype=np.int64)  # of the last call

    def at(self, step: int) -> PackedDocuments:
        return self.packed.take(self.numbers_at(step))

    def numbers_at(self, step: int) -> npt.NDArray[np.int64]:  # [size]
        """Which sequences the batch of a step has."""
        epoch, place = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._batches, self._epoch = self._shuffled(epoch), epoch
        numbers: npt.NDArray[np.int64] = self._batches[place]
        return numbers

    @property
    def _parts(self) -> tuple[int, int]:
        """Sequences that share batches with their own kind only."""
        return self.num_kept, len(self.packed) - self.num_kept

    def _shuffled(self, epoch: int) -> npt.NDArray[np.int64]:  # [per_epoch, size]
        draw = np.random.default_rng((self._seed, epoch))
        orders = [draw.permutation(part) for part in self._parts]
        orders[1] += self.num_kept
        whole = [each[: len(each) // self._size * self._size] for each in orders]
        return draw.permutation(np.concatenate(whole).reshape(-1, self._size))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorChoice:
    """How many rows of a sequence are trained, and what decides which."""

    num: int  # 0: all of them, without a place of their own
    seed: tuple[int, ...]


ALL_ANCHORS = AnchorChoice(num=0, seed=())


def make_batch(
    packed: PackedDocuments,
    *,
    depth: int,
    device: TrainingDevice,
    choice: AnchorChoice = ALL_ANCHORS,
) -> TrainingBatch:
    """The sequences on the device. The host finds their rows, so no step waits for the device."""
    trained = trained_rows(packed, depth=depth)
    chosen = _choose(trained[0], choice)
    place_of = _places(chosen, length=packed.tokens.shape[1])
    trained = trained.reshape(depth, -1) & ((place_of >= 0) | (choice.num == 0))
    rows = [np.flatnonzero(mask) for mask in trained]
    # At depth k row t predicts the token at t + 2 + k. Its teacher is the target's row before that.
    read = [each + AHEAD - 1 + k for k, each in enumerate(rows)]
    is_teacher = np.zeros(trained.shape[1], dtype=np.bool_)
    for each in read:
        is_teacher[each] = True
    index_of = np.cumsum(is_teacher) - 1  # [batch * length] of the rows that are teachers
    reached = reached_rows(packed) & packed.is_greedy

    return TrainingBatch(
        tokens=device.copy(packed.tokens.astype(np.int64)),
        documents=device.copy(packed.documents),
        positions=device.copy(packed.positions.astype(np.int64)),
        anchors=Anchors(
            rows=tuple(device.copy(each) for each in rows),
            teacher_index=tuple(device.copy(index_of[each]) for each in read),
            teacher_rows=device.copy(np.flatnonzero(is_teacher)),
            reached=device.copy(reached.reshape(-1).astype(np.int64)),
            chosen=device.copy(np.maximum(chosen, 0)),
            places=tuple(device.copy(place_of[each]) for each in rows),
        ),
    )


def _choose(
    trained: npt.NDArray[np.bool_],  # [batch, length]
    choice: AnchorChoice,
) -> npt.NDArray[np.int64]:  # [batch, num]
    """Rows of every sequence, ascending; -1 where it has fewer."""
    draw = np.random.default_rng(choice.seed)
    chosen = np.full((trained.shape[0], choice.num), -1, dtype=np.int64)
    for own, mask in zip(chosen, trained, strict=True):
        rows = np.flatnonzero(mask)
        some = np.sort(draw.permutation(rows)[: choice.num])
        own[: len(some)] = some
    return chosen


def _places(
    chosen: npt.NDArray[np.int64],  # [batch, num]
    *,
    length: int,
) -> npt.NDArray[np.int64]:  # [batch * length]
    """Which of the flattened choices a row is; -1 where it is none."""
    places = np.full(chosen.shape[0] * length, -1, dtype=np.int64)
    row, column = np.nonzero(chosen >= 0)
    places[row * length + chosen[row, column]] = row * chosen.shape[1] + column
    return places
