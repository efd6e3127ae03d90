"""Trains a served head in rounds, and writes each one that is better than the one in use."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from outrider.hub.learn_folder import LearnedVersion, LearnFolder
from outrider.train.batches import BatchOrder
from outrider.train.checkpoints import TrainingCheckpoint
from outrider.train.documents import Document
from outrider.train.export_head import export_head
from outrider.train.learn_buffer import LearnBuffer
from outrider.train.packing import pack_documents, padded
from outrider.train.recipe import LearningRates, Recipe
from outrider.train.trainable_head import TrainableHead, open_trainable, open_trainer
from outrider.train.trainer import LIKE_EAGLE
from outrider.train.training_device import RequestedDevice, TrainingDevice, choose_training_device

_STRETCH_STEPS = 32  # between two measurements
_USUAL_STRETCHES = 4  # of a round that finds a better head
_MOST_STRETCHES = 64  # of a round that finds none
_MIN_FALL = 0.005  # share of the loss: while a stretch lowers it so far, the round goes on
_DEPTH = 5  # draft steps that are trained, as `outrider train eagle3` does
_ANCHORS = 64  # blocks that are trained in each sequence
_HELD_SEQUENCES = 8  # at most, to measure a head with
_MIN_TEXTS = 8  # in the buffer, before a round begins
_NEW_TEXTS = 8  # since a round without a better head, before another one begins
# Tokens per round that a head must gain: a swap empties the prefix cache.
_MIN_GAIN = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadScore:
    """How good a head is on texts that were held back."""

    acceptance: float  # tokens per round
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """How a round of training ended."""

    before: HeadScore  # of the head in use
    after: HeadScore  # of the trained head, on the same texts
    version: int  # that was written; 0: none, because it is not better


class RoundCancelled(Exception):
    """Another head is in use since the round began."""


class Learner:
    """Owns the trainer, the buffer of texts, and which version is in use."""

    def __init__(self, folder: LearnFolder, target_folder: Path, *, device: str, buffer_bytes: int):
        self._folder, self._target_folder = folder, target_folder
        self._head = head = open_trainable(folder.start, target_folder)
        where = self._where = _choose_device(head, device)
        self._length = where.short_step.length
        self._trainer = open_trainer(head, _recipe(head, where), _rates(head), where)
        weights = self._trainer.weights
        self._initial = {name: each.detach().cpu().clone() for name, each in weights.items()}
        self.buffer = LearnBuffer(buffer_bytes, length=self._length)
        self.version = 0
        self.num_rounds = self.num_steps = 0
        self._next_at = 0  # texts that have come, before the next round begins

    @property
    def has_work(self) -> bool:
        """Whether there is something new to learn."""
        return self.buffer.num_added >= self._next_at and len(self.buffer) >= _MIN_TEXTS

    def use(self, version: int) -> None:
        """Go on from a version: the engine drafts with it."""
        self._head = open_trainable(self._folder.head(version), self._target_folder)
        self.version = version
        self._next_at = self.buffer.num_added  # the same texts may have more to give

    def run_round(
        self, before_step: Callable[[], None], between_ops: Callable[[], None]
    ) -> RoundResult:
        """Train from the head in use until it is better, which writes a version, or gains no more.

        Both functions wait while requests run. `before_step` is called before each step, and may
        cancel the round. `between_ops` is called within a step, where it takes long.
        """
        with self._where.pausing(between_ops):
            return self._run_round(before_step)

    def _run_round(self, before_step: Callable[[], None]) -> RoundResult:
        self.num_rounds += 1
        held = self.buffer.held_back(_HELD_SEQUENCES * self._length)
        self._trainer.load_state_dict(self._head.state_dict(self._initial))
        before = after = self._measure(held, before_step)
        is_better = False
        for number in range(1, _MOST_STRETCHES + 1):
            self._train(before_step)
            last, after = after, self._measure(held, before_step)
            is_better = after.acceptance >= before.acceptance + _MIN_GAIN
            is_falling = after.loss < last.loss * (1 - _MIN_FALL)
            if not is_falling or (is_better and number >= _USUAL_STRETCHES):
                break
        is_better = is_better and self._trainer.is_finite()
        self._next_at = self.buffer.num_added + _NEW_TEXTS
        version = self._write(before, after) if is_better else 0
        return RoundResult(before=before, after=after, version=version)

    def _train(self, before_step: Callable[[], None]) -> None:
        """Some steps on texts of the buffer."""
        batch, seed = self._trainer.recipe.batch, self.num_steps
        texts = self.buffer.sample(_STRETCH_STEPS * batch * self._length, seed=seed)
        packed = pack_documents(texts, length=self._length, seed=seed)
        order = BatchOrder(packed, size=min(batch, len(packed)), seed=seed)
        for step in range(_STRETCH_STEPS):
            before_step()
            self._trainer.step(step, padded(order.at(step), batch))
            self.num_steps += 1

    def _measure(self, held: list[Document], before_step: Callable[[], None]) -> HeadScore:
        """Accepted drafts are counted for greedy texts, and estimated for sampled ones."""
        packed = pack_documents(held, length=self._length, seed=0)
        metrics = self._trainer.evaluate(packed, before_step)
        greedy = sum(each.temperature == 0 for each in held) / len(held)
        mean = greedy * metrics.accept_length + (1 - greedy) * metrics.accept_length_sampled
        return HeadScore(acceptance=mean, loss=metrics.loss)

    def _write(self, before: HeadScore, after: HeadScore) -> int:
        facts = LearnedVersion(
            version=self._folder.next_number,
            parent=self.version,
            steps=self.num_steps,
            texts=len(self.buffer),
            acceptance_before=before.acceptance,
            acceptance_after=after.acceptance,
        )
        trained = TrainingCheckpoint(
            step=self.num_steps,
            facts={"fields": self._head.fields},
            state_dict=self._trainer.state_dict(),
            ids=self._head.spec.ids,
        )
        with self._folder.new_version(facts) as head_folder:
            export_head(
                trained,
                head_folder,
                target_folder=self._target_folder,
                format="eagle3",
                dtype=self._head.dtype,
            )
        return facts.version


def _recipe(head: TrainableHead, where: TrainingDevice) -> Recipe:
    config = head.spec.config
    return Recipe(
        steps=_STRETCH_STEPS,
        batch=where.short_step.batch,
        depth=_DEPTH if config.blocks is None else config.blocks.usual_drafts,
        decay=0.8,
        loss="ce",
        seed=0,
        anchors=0 if config.origin.algorithm in LIKE_EAGLE else _ANCHORS,
    )


def _choose_device(head: TrainableHead, device: str) -> TrainingDevice:
    requested = RequestedDevice(device=device, attention=None, is_compiled=False)
    head_dim = head.spec.config.layer.plain_attention.head_dim
    return choose_training_device(requested, head_dim=head_dim)


def _rates(head: TrainableHead) -> LearningRates:
    """A third of the rate of a new head. DFlash and DSpark score with the target's lm_head."""
    is_frozen = head.spec.config.origin.algorithm not in LIKE_EAGLE
    return LearningRates(
        peak=2e-4,
        warmup=0.1,
        floor=0.1,
        clip=1.0,
        scores=0.0 if is_frozen else 0.1,
        scores_frozen=1.0 if is_frozen else 0.0,
    )
