"""The time from weights on the device to the first tokens: assembling, compiling, capturing."""

import random
import time
from dataclasses import dataclass

from benchmarks.steps.bench_engines import BenchTarget, Drafting
from benchmarks.steps.steady_rows import submission
from benchmarks.steps.step_args import StepWork
from benchmarks.steps.time_decode import engine_for


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStart:
    """Seconds since an engine began to be assembled; the first engine of a process is cold."""

    assembled_s: float
    first_token_s: float
    second_token_s: float


def measure_cold_start(target: BenchTarget, drafting: Drafting, work: StepWork) -> ColdStart:
    """Assemble an engine and answer one request of two tokens or more."""
    start = time.perf_counter()
    engine = engine_for(target, drafting, work).engine
    assembled_s = time.perf_counter() - start
    prompt = work.cases[0].prompt
    engine.add(submission("0", random.Random(0), prompt=prompt, vocab=engine.vocab_size))
    times: list[float] = []  # of the first and of the second token
    while len(times) < 2:
        for update in engine.step():
            times += [time.perf_counter() - start] * len(update.tokens)
    engine.abort("0")
    while engine.has_work:
        engine.step()
    return ColdStart(assembled_s=assembled_s, first_token_s=times[0], second_token_s=times[1])
