"""The loop: steps, lines in the journal, examinations and checkpoints, until the recipe ends."""

import gc
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from outrider.errors import ConfigError
from outrider.frontend.interrupts import held_interrupts
from outrider.train.acceptance_meter import TrainingMetrics
from outrider.train.batches import BatchOrder
from outrider.train.checkpoints import TrainingCheckpoint, describe_last, save_checkpoint
from outrider.train.packing import PackedDocuments
from outrider.train.recipe import rate_at
from outrider.train.trainer import Trainer
from outrider.train.training_log import Show, TrainingLog, log_line, metrics_line, training_bar

_WARM_STEPS = 3  # before speed is measured: kernels are compiled in the first
_TIMED_STEPS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """After how many steps each thing is done."""

    log: int
    examine: int
    save: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSequences:
    """The sequences of a run."""

    order: BatchOrder
    held_out: PackedDocuments


class TrainingRun:
    """Owns a run in progress: its trainer, its files and how far it has come."""

    def __init__(
        self,
        trainer: Trainer,
        course: TrainingSequences,
        cadence: Cadence,
        *,
        folder: Path,
        start: TrainingCheckpoint,  # step, facts and ids; its memory is the trainer's already
    ) -> None:
        self._trainer, self._course, self._cadence = trainer, course, cadence
        self._start = start
        self._checkpoints = folder / "checkpoints"
        self._journal = TrainingLog(folder / "metrics.jsonl", step=start.step)
        self._is_whole = True  # no step has begun that did not end
        self._clock_s, self._clock_step = time.monotonic(), start.step
        self.step = start.step

    def finish(self) -> Path:
        """Train to the end of the recipe; the last checkpoint."""
        recipe = self._trainer.recipe
        try:
            with training_bar(recipe.steps, done=self.step) as show:
                while self.step < recipe.steps:
                    self._advance(show)
        except KeyboardInterrupt:
            if self._is_whole:
                log_line(f"interrupted: saved {self.save()}; go on with --resume")
            raise
        return self.save()

    def save(self) -> Path:
        """A checkpoint of the present moment, if it is worth keeping."""
        if not self._trainer.is_finite():
            self._refuse("the weights are not finite")
        now = replace(self._start, step=self.step, memory=self._trainer.memory())
        return save_checkpoint(self._checkpoints, now)

    def _advance(self, show: Show) -> None:
        """One step, and what is due after it."""
        step, cadence, steps = self.step, self._cadence, self._trainer.recipe.steps
        is_logged = _is_due(step + 1, cadence.log, steps)
        meters = [self._trainer.meter()] if is_logged else []
        with held_interrupts():
            self._is_whole = False
            self._trainer.step(step, self._course.order.at(step), meters)
            self.step += 1
            self._is_whole = True
        for meter in meters:
            self._log(meter.read(), show)
        if _is_due(self.step, cadence.examine, steps):
            held = self._trainer.examine(self._course.held_out)
            self._journal.write("held out", self.step, held)
            log_line(f"held out at step {self.step}: {metrics_line(held)}")
        if self.step % cadence.save == 0:
            self.save()

    def _log(self, metrics: TrainingMetrics, show: Show) -> None:
        if not math.isfinite(metrics.loss):
            self._refuse(f"the loss is {metrics.loss}")
        speed = self._speed()
        rate = rate_at(self.step - 1, self._trainer.recipe, self._trainer.rates)
        self._journal.write("train", self.step, metrics, steps_per_s=speed, learning_rate=rate)
        show(self.step, f"{speed:.1f} steps/s, {metrics_line(metrics)}")

    def _speed(self) -> float:
        """Steps per second since it was last asked for."""
        now_s = time.monotonic()
        rate = (self.step - self._clock_step) / max(now_s - self._clock_s, 1e-9)
        self._clock_s, self._clock_step = now_s, self.step
        return rate

    def _refuse(self, fault: str) -> None:
        raise ConfigError(
            f"{fault} at step {self.step}; lower --lr and go on with --resume "
            f"({describe_last(self._checkpoints)})"
        )


def steps_within(trainer: Trainer, order: BatchOrder, budget_s: float) -> int:
    """How many steps fit into a time, by those of a trial that is forgotten again."""
    for step in range(_WARM_STEPS):
        loss = trainer.step(step, order.at(step))
    float(loss)
    begin_s = time.monotonic()
    for step in range(_TIMED_STEPS):
        loss = trainer.step(step, order.at(step))
    float(loss)
    step_s = (time.monotonic() - begin_s) / _TIMED_STEPS
    log_line(f"{1 / step_s:.2f} steps/s: {int(budget_s / step_s)} steps fit into {budget_s:g} s")
    return max(1, int(budget_s / step_s))


def check_same(kept: dict[str, Any], asked: dict[str, Any]) -> None:
    """Refuse to go on with another run than the one that was begun."""
    for name in asked:
        if kept.get(name) != asked[name]:
            raise ConfigError(
                f"the run was begun with {name} {kept.get(name)} and is now given {asked[name]}; "
                "use the flags it was begun with, or another --out"
            )


def _is_due(step: int, every: int, last: int) -> bool:
    return step % every == 0 or step == last


def free_device(device: torch.device) -> None:
    """Hand memory back that a model before this one held."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
