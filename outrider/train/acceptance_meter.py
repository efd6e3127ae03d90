"""How well a head drafts, counted while it is trained or examined; read once, at the end."""

from dataclasses import dataclass

import torch

from outrider.train.batches import TrainingBatch
from outrider.train.loss import overlap
from outrider.train.packed_target import Teacher
from outrider.train.packing import AHEAD


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMetrics:
    """Shares by depth, and what they come to. Without greedy answers the first length is 1."""

    loss: float
    agreement: tuple[float, ...]  # the head's likeliest token is the target's
    overlap: tuple[float, ...]  # the sum of min(p, q), of the whole vocabulary at temperature 1
    accept_length: float  # of a greedy chain of this depth, counted anchor by anchor
    accept_length_sampled: float  # of the best chain rule at temperature 1, estimated


class AcceptanceMeter:
    """Owns the sums, on the device. Each anchor is followed through all depths.

    A greedy answer that is fed to the head token by token is what greedy decoding would feed it,
    so a row that is right at depths 0 to k keeps k + 1 drafts, and the mean over rows is exact.
    """

    def __init__(self, ids: torch.Tensor, *, depth: int) -> None:  # ids [draft_vocab]
        self._ids = ids
        self._depth = depth
        # per depth: trained rows, agreed, overlap, kept on greedy answers, kept when sampling
        self._sums = torch.zeros(depth, 5, dtype=torch.float64, device=ids.device)
        self._rounds = torch.zeros((), dtype=torch.float64, device=ids.device)
        self._loss = torch.zeros((), dtype=torch.float64, device=ids.device)
        self._num_batches = 0
        self._alive = ids.new_zeros(0)
        self._share = torch.zeros(0, device=ids.device)

    def begin(self, batch: TrainingBatch) -> None:
        self._alive = batch.anchors.reached.clone()
        self._share = torch.ones_like(self._alive, dtype=torch.float32)
        self._rounds += self._alive.index_select(0, batch.anchors.rows[0]).sum()

    @torch.no_grad()
    def note(
        self,
        depth: int,
        logits: torch.Tensor,  # [trained, draft_vocab]
        batch: TrainingBatch,
        teacher: Teacher,
    ) -> None:
        rows, grades = batch.anchors.rows[depth], batch.anchors.grades[depth]
        drafts = self._ids.index_select(0, logits.argmax(-1))
        agreed = drafts == teacher.best.index_select(0, grades)
        told = batch.tokens.flatten().index_select(0, rows + AHEAD + depth)
        shared = overlap(logits, teacher.probabilities.index_select(0, grades))
        alive = self._alive.index_select(0, rows) * (drafts == told)
        share = self._share.index_select(0, rows) * shared
        self._alive = torch.zeros_like(self._alive).index_copy_(0, rows, alive)
        self._share = torch.zeros_like(self._share).index_copy_(0, rows, share)
        counts = (torch.ones_like(shared), agreed, shared, alive, share)
        self._sums[depth] += torch.stack([each.sum(dtype=torch.float64) for each in counts])

    def end(self, loss: torch.Tensor) -> None:
        self._loss += loss.detach()
        self._num_batches += 1

    def read(self) -> TrainingMetrics:
        """Wait for the device and take the numbers home."""
        sums, rounds = self._sums.cpu(), max(float(self._rounds), 1.0)
        trained = sums[:, 0].clamp_min(1.0)
        return TrainingMetrics(
            loss=float(self._loss) / max(self._num_batches, 1),
            agreement=tuple((sums[:, 1] / trained).tolist()),
            overlap=tuple((sums[:, 2] / trained).tolist()),
            accept_length=1.0 + float(sums[:, 3].sum()) / rounds,
            accept_length_sampled=1.0 + float(sums[:, 4].sum() / trained[0]),
        )
