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

_WARM_STEPS = 4  # before speed is measured: the first ones compile kernels
_TIMED_STEPS = 16
_TRIAL_SHARE = 0.05  # of the time that a run has, for each measurement


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimit:
    """When a run ends that has a time budget. A trial only guesses how many steps fit."""

    end_s: float  # of the monotonic clock
    most_steps: int


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
        limit: TimeLimit | None = None,
    ) -> None:
        self._trainer, self._sequences, self._cadence = trainer, sequences, cadence
        self._start, self._limit = start, limit
        self._checkpoints = folder / "checkpoints"
        self._training_log = TrainingLog(folder / "metrics.jsonl", step=start.step)
        self._is_consistent = True  # False inside a step
        self._clock_s, self._clock_step = time.monotonic(), start.step
        self.step = start.step

    def finish(self) -> Path:
        """Train to the last step. Returns the last checkpoint."""
        try:
            with training_bar(self._trainer.recipe.steps, done=self.step) as show:
                while self.step < self._trainer.recipe.steps:
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
        facts = self._start.facts
        planned = {**facts, "run": {**facts["run"], "steps": self._trainer.recipe.steps}}
        now = replace(
            self._start, step=self.step, facts=planned, state_dict=self._trainer.state_dict()
        )
        return save_checkpoint(self._checkpoints, now)

    def _advance(self, show: ShowProgress) -> None:
        """One step, then the log line, evaluation and checkpoint that are due."""
        step, cadence, steps = self.step, self._cadence, self._trainer.recipe.steps
        is_logged = _is_due(step + 1, cadence.log, steps)
        meter = self._trainer.new_meter() if is_logged else None
        with held_interrupts():
            self._is_consistent = False
            order = self._sequences.order
            numbers = order.numbers_at(step).tolist()
            self._trainer.step(step, order.at(step), meter, sequences=numbers)
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
        self._plan_again(speed)

    def _plan_again(self, speed: float) -> None:
        """Let the run end in time, at its lowest rate: the learning rate follows from the steps.

        While the target's states are still computed, steps are slower than later ones.
        """
        trainer, limit = self._trainer, self._limit
        if limit is None:
            return
        left_s, planned = limit.end_s - time.monotonic(), trainer.recipe.steps
        steps = self.step + int(max(left_s, 0.0) * speed)
        per_epoch = self._sequences.order.per_epoch
        if trainer.is_caching and self.step <= per_epoch < planned and left_s > 0:
            steps = max(steps, planned)
        trainer.recipe = replace(trainer.recipe, steps=min(steps, limit.most_steps))

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

    A trainer that keeps the target's states computes them in the first epoch only. The trainer of
    the trial is not used afterwards.
    """
    start_s, limit_s = time.monotonic(), budget_s * _TRIAL_SHARE
    _timed(trainer, order, _WARM_STEPS, limit_s=math.inf)
    step_s = again_s = _timed(trainer, order, _TIMED_STEPS, limit_s=limit_s)
    if trainer.is_caching:
        again_s = _timed(trainer, order, _TIMED_STEPS, limit_s=limit_s)
    left_s = budget_s - (time.monotonic() - start_s)
    first = min(order.per_epoch, int(left_s / step_s))
    steps = max(1, first + int((left_s - first * step_s) / again_s))
    log_line(
        f"{1 / step_s:.2f} steps/s, then {1 / again_s:.2f}: {steps} steps fit into {left_s:.0f} of "
        f"{budget_s:g} s"
    )
    return steps


def _timed(trainer: Trainer, order: BatchOrder, num: int, *, limit_s: float) -> float:
    """Seconds of a step, of at most so many. Different numbers of steps have different batches."""
    begin_s, done = time.monotonic(), 0
    while done < num and (not done or time.monotonic() - begin_s < limit_s):
        numbers = order.numbers_at(num + done).tolist()
        loss = trainer.step(done, order.at(num + done), sequences=numbers)
        done += 1
    float(loss)
    return (time.monotonic() - begin_s) / done


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
