"""Rows that decode together: how long their steps take when all of them run."""

import itertools
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.steps.bench_engine import BenchEngine
from benchmarks.steps.bench_engines import LoadedEngine
from benchmarks.steps.step_args import SKIPPED, Case
from outrider.engine.engine import Engine
from outrider.errors import ConfigError
from outrider.wire.draft_budget import UNBOUNDED
from outrider.wire.row_sampling import RowSampling
from outrider.wire.submission import Limits, Submission

_SEED = 0
_ENDLESS = 1 << 30  # tokens; the benchmark itself ends its rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """Consecutive steps in which every row emitted."""

    steps_s: tuple[float, ...]  # wall time from one result to the next
    emitted: int  # tokens of all rows and steps
    context: float  # tokens cached per row in the middle
    occupancy: float  # share of the time in which the device runs a step
    waited_s: float  # by the host, for results

    @property
    def step_s(self) -> float:
        return statistics.median(self.steps_s)

    @property
    def tokens_per_s(self) -> float:
        return self.emitted / sum(self.steps_s)

    @property
    def host_share(self) -> float:
        """Share of the time in which the host did not wait; near 1 the host is the limit."""
        return 1.0 - self.waited_s / sum(self.steps_s)


def measure_steady(loaded: LoadedEngine, case: Case, *, steps: int) -> Steady:
    """Time steps of all rows, after their prompts and the first steps.

    Everything runs twice and the second run counts: by then every shape is captured.
    """
    _time_steps(loaded, case, steps=steps)
    return _time_steps(loaded, case, steps=steps)


def _time_steps(loaded: LoadedEngine, case: Case, *, steps: int) -> Steady:
    engine, occupancy = loaded.engine, loaded.runner.occupancy
    with under_way(engine, case) as start:
        occupancy.restart()
        times, emitted = [time.perf_counter()], 0
        for _ in range(steps):
            updates = engine.step()
            times.append(time.perf_counter())
            emitted += sum(len(update.tokens) for update in updates)
        share, waited_s = occupancy.share, occupancy.waited_s
    return Steady(
        steps_s=tuple(after - before for before, after in itertools.pairwise(times)),
        emitted=emitted,
        context=start + emitted / 2 / case.rows,
        occupancy=share,
        waited_s=waited_s,
    )


@contextmanager
def under_way(engine: BenchEngine, case: Case) -> Iterator[float]:
    """Rows that all decode; yields their mean length. At the end the rows are aborted."""
    names = [str(index) for index in range(case.rows)]
    draw = random.Random(_SEED)
    for name in names:
        request = submission(name, draw, prompt=case.prompt, vocab=engine.vocab_size)
        if engine.facts.host.prefix_cache:
            engine.pretend_cached(request.prompt)
        engine.add(request)
    emitted = _until_all_started(engine, names)
    for _ in range(SKIPPED):
        emitted += sum(len(update.tokens) for update in engine.step())
    yield case.prompt + emitted / case.rows
    for name in names:
        engine.abort(name)
    while engine.has_work:
        engine.step()


def submission(
    name: str, draw: random.Random, *, prompt: int, vocab: int, max_tokens: int = _ENDLESS
) -> Submission:
    """A prompt of random ids, answered greedily; no token ends the answer."""
    return Submission(
        request_id=name,
        prompt=tuple(draw.randrange(vocab) for _ in range(prompt)),
        sampling=RowSampling(seed=_SEED, temperature=0.0),
        limits=Limits(max_tokens=max_tokens, stop_ids=frozenset()),
        budget=UNBOUNDED,
    )


def _until_all_started(engine: Engine, names: list[str]) -> int:
    """Step until every row has emitted; returns how many tokens all of them have."""
    waiting, emitted = set(names), 0
    while waiting:
        for update in engine.step():
            waiting.discard(update.request_id)
            emitted += len(update.tokens)
            if update.finish != "running":
                raise ConfigError(
                    f"a row ended before all {len(names)} had begun; lower --rows or --prompt"
                )
    return emitted
