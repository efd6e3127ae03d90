"""How well a head drafts, summed up on the device during training or evaluation."""

from dataclasses import dataclass

import torch

from outrider.train.batches import TrainingBatch
from outrider.train.loss import overlap
from outrider.train.packed_target import Teacher
from outrider.train.packing import AHEAD
from outrider.train.training_head import DraftLogits


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMetrics:
    """Means by depth, and the accept lengths that follow from them."""

    loss: float
    agreement: tuple[float, ...]  # share of rows where the head's likeliest token is the target's
    overlap: tuple[float, ...]  # sum of min(p, q) over the vocabulary at temperature 1
    accept_length: float  # of a greedy chain, counted per anchor; 1 without greedy answers
    accept_length_sampled: float  # of the best chain rule at temperature 1, an estimate
    confidence: tuple[float, ...]  # mean estimate of the overlap, by a head that makes one


class AcceptanceMeter:
    """Owns the sums, on the device. Each anchor is followed through all depths.

    Greedy decoding feeds the head the tokens of a greedy answer, and so does training. A row whose
    drafts at depths 0 to k are right therefore has k + 1 accepted drafts, and the mean is exact.
    """

    def __init__(self, ids: torch.Tensor, *, depth: int) -> None:  # ids [draft_vocab]
        self._ids = ids
        # Columns: trained rows, agreement, overlap, accepted if greedy, accepted if sampled, and
        # the confidence.
        self._sums = torch.zeros(depth, 6, dtype=torch.float64, device=ids.device)
        self._rounds = torch.zeros((), dtype=torch.float64, device=ids.device)
        self._loss = torch.zeros((), dtype=torch.float64, device=ids.device)
        self._num_batches = 0
        self._has_confidence = False
        # [batch * length] of the current batch: 1 while all greedy drafts of an anchor are right,
        # and the probability that sampled drafts are accepted up to here.
        self._alive = ids.new_zeros(0)
        self._share = torch.zeros(0, device=ids.device)

    def begin(self, batch: TrainingBatch) -> None:
        """Start the anchors of a batch."""
        self._alive = batch.anchors.reached.clone()
        self._share = torch.ones_like(self._alive, dtype=torch.float32)
        self._rounds += self._alive.index_select(0, batch.anchors.rows[0]).sum()

    @torch.no_grad()
    def add(
        self,
        depth: int,
        draft: DraftLogits,
        batch: TrainingBatch,
        teacher: Teacher,
    ) -> None:
        """Count the drafts of one depth."""
        logits, self._has_confidence = draft.tokens, draft.confidence.shape[1] > 0
        rows, teacher_index = batch.anchors.rows[depth], batch.anchors.teacher_index[depth]
        drafts = self._ids.index_select(0, logits.argmax(-1))
        agreed = drafts == teacher.best.index_select(0, teacher_index)
        answer = batch.tokens.flatten().index_select(0, rows + AHEAD + depth)
        shared = overlap(logits, teacher.probabilities.index_select(0, teacher_index))
        alive = self._alive.index_select(0, rows) * (drafts == answer)
        share = self._share.index_select(0, rows) * shared
        self._alive = torch.zeros_like(self._alive).index_copy_(0, rows, alive)
        self._share = torch.zeros_like(self._share).index_copy_(0, rows, share)
        confidence = draft.confidence.sigmoid().sum(1)  # 0 without one
        counts = (torch.ones_like(shared), agreed, shared, alive, share, confidence)
        self._sums[depth] += torch.stack([each.sum(dtype=torch.float64) for each in counts])

    def end(self, loss: torch.Tensor) -> None:
        """Add the loss of the batch."""
        self._loss += loss.detach()
        self._num_batches += 1

    def read(self) -> TrainingMetrics:
        """The means so far. Waits for the device."""
        sums, rounds = self._sums.cpu(), max(float(self._rounds), 1.0)
        trained = sums[:, 0].clamp_min(1.0)
        return TrainingMetrics(
            loss=float(self._loss) / max(self._num_batches, 1),
            agreement=tuple((sums[:, 1] / trained).tolist()),
            overlap=tuple((sums[:, 2] / trained).tolist()),
            accept_length=1.0 + float(sums[:, 3].sum()) / rounds,
            accept_length_sampled=1.0 + float(sums[:, 4].sum() / trained[0]),
            confidence=tuple((sums[:, 5] / trained).tolist()) if self._has_confidence else (),
        )
