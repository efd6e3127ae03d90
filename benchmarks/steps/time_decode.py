"""Decoding, plain or drafted, at several numbers of rows and lengths, beside floors and peers."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.steps.bench_engines import (
    BenchTarget,
    Drafting,
    LoadedEngine,
    build,
    memory_bytes,
    reach_of,
)
from benchmarks.steps.device_rates import DeviceRates
from benchmarks.steps.steady_rows import Steady, measure_steady
from benchmarks.steps.step_args import Case, StepWork
from benchmarks.steps.step_floors import Pass, total_s
from benchmarks.steps.vllm_numbers import PeerStep
from outrider.errors import ConfigError
from outrider.step.executor import Executor

Note = Callable[[str], None]  # called with the name of every run as it begins


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFloor:
    """The least time of a step at one set of rates."""

    rates: str
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPoint:
    """One case, measured."""

    case: Case
    steady: Steady
    floors: tuple[StepFloor, ...]
    peers: tuple[PeerStep, ...]  # one, where it was measured alike
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepComparison:
    """What a case is compared with: the passes of its step at a length, and a peer's step."""

    passes: Callable[[Case, float], tuple[Pass, ...]]
    peers: Callable[[Case], tuple[PeerStep, ...]]
    rates: tuple[DeviceRates, ...]


def engine_for(
    target: BenchTarget, drafting: Drafting, work: StepWork, executor: Executor | None = None
) -> LoadedEngine:
    """An engine in which all rows of any case run at the same time."""
    context = checked_reach(target, drafting, work, flags="--prompt, --context, --tokens or --rows")
    rows = max(case.rows for case in work.cases)
    return build(target, drafting, rows=rows, context=context, executor=executor)


def checked_reach(target: BenchTarget, drafting: Drafting, work: StepWork, *, flags: str) -> int:
    """The most tokens a row can have; an error names `flags` if the context is shorter."""
    budget = drafting.kind.facts.budget
    context = reach_of(work, budget, step_tokens=target.place.step_tokens)
    most = target.model.config.max_context
    if context > most:
        raise ConfigError(
            f"rows may grow to {context} tokens here and the model's context is {most}; lower "
            f"{flags}"
        )
    return context


def measure_point(
    loaded: LoadedEngine,
    case: Case,
    *,
    steps: int,
    comparison: StepComparison,
    device: torch.device,
) -> StepPoint:
    """Time one case and put its floors and peers beside it."""
    steady = measure_steady(loaded, case, steps=steps)
    passes = comparison.passes(case, steady.context)
    return StepPoint(
        case=case,
        steady=steady,
        floors=tuple(
            StepFloor(rates=rates.name, step_s=total_s(passes, rates)) for rates in comparison.rates
        ),
        peers=comparison.peers(case),
        memory_bytes=memory_bytes(device),
    )
