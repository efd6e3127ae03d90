"""Which sequences a step trains on: a function of the seed and the step, and of nothing else."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from outrider.errors import ConfigError
from outrider.train.packing import AHEAD, PackedDocuments, reached_rows, trained_rows

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchors:
    """Rows of a batch by depth, as numbers in the flattened [batch * length]."""

    rows: tuple[torch.Tensor, ...]  # per depth [trained]; each is a part of the one before
    grades: tuple[torch.Tensor, ...]  # per depth [trained]: which graded row is its teacher
    graded: torch.Tensor  # [graded] rows at which the target's own law is asked for
    reached: torch.Tensor  # [batch * length] 1 where greedy decoding would draft from, else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBatch:
    """What one step trains on."""

    tokens: torch.Tensor  # [batch, length]
    documents: torch.Tensor  # [batch, length]
    positions: torch.Tensor  # [batch, length]
    anchors: Anchors


class BatchOrder:
    """Owns the order: every epoch is another shuffle of whole sequences."""

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


def make_batch(packed: PackedDocuments, *, depth: int, device: torch.device) -> TrainingBatch:
    """The sequences on the device, with their rows found on the host: no step waits for them."""
    trained = trained_rows(packed, depth=depth).reshape(depth, -1)
    rows = [np.flatnonzero(mask) for mask in trained]
    # Depth k of row t is graded by the target's law at t + 1 + k, which is of the token after it.
    graded = np.unique(np.concatenate([each + AHEAD - 1 + k for k, each in enumerate(rows)]))
    reached = reached_rows(packed) & packed.is_greedy

    def on_device(values: npt.NDArray[np.generic]) -> torch.Tensor:
        host = torch.from_numpy(values)
        pinned = host.pin_memory() if device.type == "cuda" else host
        return pinned.to(device, non_blocking=True)

    return TrainingBatch(
        tokens=on_device(packed.tokens.astype(np.int64)),
        documents=on_device(packed.documents),
        positions=on_device(packed.positions.astype(np.int64)),
        anchors=Anchors(
            rows=tuple(on_device(each) for each in rows),
            grades=tuple(
                on_device(np.searchsorted(graded, each + AHEAD - 1 + k))
                for k, each in enumerate(rows)
            ),
            graded=on_device(graded),
            reached=on_device(reached.reshape(-1).astype(np.int64)),
        ),
    )
