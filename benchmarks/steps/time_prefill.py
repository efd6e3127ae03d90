"""One long prompt alone: the rate of its arithmetic, compared with the device's."""

import random
import statistics
import time
from dataclasses import dataclass

from benchmarks.steps.bench_engines import BenchTarget, build, memory_bytes, no_drafting
from benchmarks.steps.breakdown import Breakdown, profile_run, summarise
from benchmarks.steps.steady_rows import submission
from benchmarks.steps.step_args import Case
from benchmarks.steps.step_floors import prefill_flops
from benchmarks.steps.time_decode import Note
from outrider.engine.engine import Engine
from outrider.errors import ConfigError

_SPARE = 16  # tokens of context after the prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """Runs of one prompt up to its first token. The first run, which captures, is separate."""

    tokens: int
    runs_s: tuple[float, ...]
    first_run_s: float
    flops: float
    matrix_rate: float  # of one large product, measured in the same run
    memory_bytes: int
    breakdowns: tuple[Breakdown, ...]  # of the whole prompt; one, or none

    @property
    def prompt_s(self) -> float:
        return statistics.median(self.runs_s)

    @property
    def flops_per_s(self) -> float:
        return self.flops / self.prompt_s

    @property
    def of_matrix_rate(self) -> float:
        return self.flops_per_s / self.matrix_rate


def count_prompt_runs(repetitions: int) -> int:
    """How often `note` will be called."""
    return 2 + repetitions


def measure_prefill(
    target: BenchTarget,
    *,
    tokens: int,
    repetitions: int,
    has_breakdown: bool,
    matrix_rate: float,
    note: Note,
) -> Prefill:
    """Time prompts of this length, each of other tokens, on an engine with one row."""
    config = target.model.config
    if tokens + _SPARE > config.max_context:
        raise ConfigError(
            f"--tokens {tokens} does not fit in the model's context of {config.max_context}; "
            f"use {config.max_context - _SPARE} or less"
        )
    engine = build(target, no_drafting(), rows=1, context=tokens + _SPARE).engine
    draw, runs = random.Random(0), []
    for index in range(2 + repetitions):  # two warm-ups: the first compiles, the second captures
        note(f"prompt {index}")
        runs.append(_first_token_s(engine, draw, tokens))
    return Prefill(
        tokens=tokens,
        runs_s=tuple(runs[2:]),
        first_run_s=runs[0],
        flops=prefill_flops(config, tokens=tokens),
        matrix_rate=matrix_rate,
        memory_bytes=memory_bytes(target.device),
        breakdowns=(_break_down(target, engine, draw, tokens),) if has_breakdown else (),
    )


def _break_down(target: BenchTarget, engine: Engine, draw: random.Random, tokens: int) -> Breakdown:
    """Profile one prompt; the first use of a profiler is slow."""
    kernels = [
        profile_run(lambda: _first_token_s(engine, draw, tokens), target.device) for _ in range(2)
    ]
    return summarise(Case(rows=1, prompt=tokens), kernels[-1], num_steps=1)


def _first_token_s(engine: Engine, draw: random.Random, tokens: int) -> float:
    request = submission("0", draw, prompt=tokens, vocab=engine.vocab_size, max_tokens=1)
    start = time.perf_counter()
    engine.add(request)
    while engine.has_work:
        engine.step()
    return time.perf_counter() - start
