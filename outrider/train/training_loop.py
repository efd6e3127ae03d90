"""The training loop: steps, metrics, evaluations and checkpoints."""

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError
from outrider.frontend.interrupts import held_interrupts
from outrider.train.acceptance_meter import TrainingMetrics
from outrider.train.batches import BatchOrder
from outrider.train.checkpoints import TrainingCheckpoint, describe_last, save_checkpoint
from outrider.train.packing import PackedDocuments
from outrider.train.recipe import rate_at
from outrider.train.trainer import Trainer
from outrider.train.training_log import (
    ShowProgress,
    TrainingLog,
    log_line,
    metrics_line,
    training_bar,
)

_WARM_STEPS = 3  # before speed is measured: the first ones compile kernels
_TIMED_STEPS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """Steps between log lines, evaluations and checkpoints."""

    log: int
    evaluate: int
    save: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSequences:
    """The sequences to train on and those held out for evaluation."""

    order: BatchOrder
    held_out: PackedDocuments


class TrainingRun:
    """Owns a run in progress: its trainer, its files and its step number."""

    def __init__(
        self,
        trainer: Trainer,
        sequences: TrainingSequences,
        cadence: Cadence,
        *,
        folder: Path,
        start: TrainingCheckpoint,  # step, facts and ids; the trainer has its state already
    ) -> None:
        self._trainer, self._sequences, self._cadence = trainer, sequences, cadence
        self._start = start
        self._checkpoints = folder / "checkpoints"
        self._training_log = TrainingLog(folder / "metrics.jsonl", step=start.step)
        self._is_consistent = True  # False inside a step
        self._clock_s, self._clock_step = time.monotonic(), start.step
        self.step = start.step

    def finish(self) -> Path:
        """Train to the last step. Returns the last checkpoint."""
        recipe = self._trainer.recipe
        try:
            with training_bar(recipe.steps, done=self.step) as show:
                while self.step < recipe.steps:
                    self._advance(show)
        except KeyboardInterrupt:
            if self._is_consistent:
                log_line(f"interrupted: saved {self.save()}; go on with --resume")
            raise
        return self.save()

    def save(self) -> Path:
        """Write a checkpoint. Refused if the weights are not finite."""
        if not self._trainer.is_finite():
            self._stop("the weights are not finite")
        now = replace(self._start, step=self.step, state_dict=self._trainer.state_dict())
        return save_checkpoint(self._checkpoints, now)

    def _advance(self, show: ShowProgress) -> None:
        """One step, then the log line, evaluation and checkpoint that are due."""
        step, cadence, steps = self.step, self._cadence, self._trainer.recipe.steps
        is_logged = _is_due(step + 1, cadence.log, steps)
        meter = self._trainer.new_meter() if is_logged else None
        with held_interrupts():
            self._is_consistent = False
            self._trainer.step(step, self._sequences.order.at(step), meter)
            self.step += 1
            self._is_consistent = True
        if meter is not None:
            self._log(meter.read(), show)
        if _is_due(self.step, cadence.evaluate, steps):
            metrics = self._trainer.evaluate(self._sequences.held_out)
            self._training_log.write("held out", self.step, metrics)
            log_line(f"held out at step {self.step}: {metrics_line(metrics)}")
        if self.step % cadence.save == 0:
            self.save()

    def _log(self, metrics: TrainingMetrics, show: ShowProgress) -> None:
        if not math.isfinite(metrics.loss):
            self._stop(f"the loss is {metrics.loss}")
        speed = self._speed()
        rate = rate_at(self.step - 1, self._trainer.recipe, self._trainer.rates)
        self._training_log.write("train", self.step, metrics, steps_per_s=speed, learning_rate=rate)
        show(self.step, f"{speed:.1f} steps/s, {metrics_line(metrics)}")

    def _speed(self) -> float:
        """Steps per second since the last call."""
        now_s = time.monotonic()
        rate = (self.step - self._clock_step) / max(now_s - self._clock_s, 1e-9)
        self._clock_s, self._clock_step = now_s, self.step
        return rate

    def _stop(self, fault: str) -> None:
        raise ConfigError(
            f"{fault} at step {self.step}; lower --lr and go on with --resume "
            f"({describe_last(self._checkpoints)})"
        )


def steps_within(trainer: Trainer, order: BatchOrder, budget_s: float) -> int:
    """How many steps fit into a time, of which a trial takes the first part.

    The trainer of the trial is not used afterwards.
    """
    start_s = time.monotonic()
    for step in range(_WARM_STEPS):
        loss = trainer.step(step, order.at(step))
    float(loss)
    begin_s = time.monotonic()
    for step in range(_TIMED_STEPS):
        loss = trainer.step(step, order.at(step))
    float(loss)
    end_s = time.monotonic()
    step_s, left_s = (end_s - begin_s) / _TIMED_STEPS, budget_s - (end_s - start_s)
    steps = max(1, int(left_s / step_s))
    log_line(f"{1 / step_s:.2f} steps/s: {steps} steps fit into {left_s:.0f} of {budget_s:g} s")
    return steps


def check_same_run(stored: dict[str, Any], requested: dict[str, Any]) -> None:
    """Refuse to resume a run with other settings than it was started with."""
    for name in requested:
        if stored.get(name) != requested[name]:
            raise ConfigError(
                f"the run was begun with {name} {stored.get(name)} and is now given "
                f"{requested[name]}; use the flags it was begun with, or another --out"
            )


def _is_due(step: int, every: int, last: int) -> bool:
    return step % every == 0 or step == last
