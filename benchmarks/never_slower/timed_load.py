"""A load for some time: rows that only decode, or requests that come and go.

A steady load has one request for each row. Its clock starts when all rows have begun, and stops
early when a row ends. Under churn it starts with the first step, and as many requests are in the
engine until the end: there is no part with few rows left.
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.never_slower.never_args import LoadPlace, NeverLimits
from outrider.bench.churn.churn_run import ChurnRun, ChurnTokens, LoadTime
from outrider.bench.churn.observed_runner import ObservedRunner
from outrider.bench.churn.run_churn import TokenIds, endless_request, keep_busy, sum_tokens
from outrider.engine.engine import Engine
from outrider.runtime.runner import Runner
from outrider.wire.row_sampling import RowSampling
from outrider.wire.runner_facts import RunnerFacts
from outrider.wire.submission import Progress, RequestUpdate, Submission

_GREEDY = RowSampling(seed=0, temperature=0.0)


class LoadedWay:
    """A way to decode. Owns its engine, which is a new one for every load unless it is kept."""

    def __init__(self, name: str, runner: Runner, facts: RunnerFacts, *, keeps: bool) -> None:
        self.name, self.runner = name, runner
        self.observed = ObservedRunner(runner)
        self._facts, self._keeps = facts, keeps
        self._engine: Engine | None = None  # the kept one, after the first load

    @contextmanager
    def opened(self) -> Iterator[Engine]:
        """The engine of a load; all requests of the load end with it."""
        engine = self._engine or Engine(self.observed, self._facts)
        yield engine
        engine.abort_all()
        while engine.has_work:
            engine.step()
        if self._keeps:
            self._engine = engine
        else:
            self.runner.restart()  # the next engine finds no row, as after a start


def time_load(
    way: LoadedWay,
    place: LoadPlace,
    limits: NeverLimits,
    prompts: Sequence[TokenIds],  # requests take them in turn
    *,
    seconds: float,
) -> ChurnRun:
    """Run a load; a fresh engine knows nothing about its device or the text."""
    window = _Window(way.observed, way.runner)
    is_steady, begun = place.kind == "steady", set[str]()
    requests = _steady(prompts, place, limits) if is_steady else _churn(prompts, place, limits)
    with way.opened() as engine:
        for updates in keep_busy(engine, requests, rows=place.rows):
            window.note(updates)
            if is_steady and len(begun) < place.rows:
                begun.update(each.request_id for each in updates)
                if len(begun) == place.rows:
                    window.begin()
            elif window.passed_s >= seconds or (is_steady and _has_end(updates)):
                break
        return window.end(way.name, rows=place.rows)


class _Window:
    """Counts what happens from its beginning on; it begins when it is made."""

    def __init__(self, observed: ObservedRunner, runner: Runner) -> None:
        self._observed, self._runner = observed, runner
        self._last: dict[str, Progress] = {}  # of every request
        self.begin()

    def begin(self) -> None:
        """Begin now: what was counted before is forgotten."""
        self._before = sum_tokens(0, self._last.values())
        self._emitted = 0
        self._observed.steps.clear()
        self._runner.occupancy.restart()
        self._began = time.perf_counter()

    @property
    def passed_s(self) -> float:
        return time.perf_counter() - self._began

    def note(self, updates: tuple[RequestUpdate, ...]) -> None:
        for update in updates:
            self._emitted += len(update.tokens)
            self._last[update.request_id] = update.progress

    def end(self, way: str, *, rows: int) -> ChurnRun:
        """What was counted, and the time that it took."""
        seconds, occupancy = self.passed_s, self._runner.occupancy.share
        now, before = sum_tokens(self._emitted, self._last.values()), self._before
        return ChurnRun(
            way=way,
            rows=rows,
            time=LoadTime(seconds=seconds, occupancy=occupancy),
            tokens=ChurnTokens(
                emitted=now.emitted,
                rounds=now.rounds - before.rounds,
                drafted=now.drafted - before.drafted,
                accepted=now.accepted - before.accepted,
            ),
            steps=tuple(self._observed.steps),
        )


def _has_end(updates: tuple[RequestUpdate, ...]) -> bool:
    return any(update.finish != "running" for update in updates)


def _steady(
    prompts: Sequence[TokenIds], place: LoadPlace, limits: NeverLimits
) -> Iterator[Submission]:
    for row in range(place.rows):
        prompt = prompts[row % len(prompts)]
        yield endless_request(str(row), prompt, _GREEDY, max_tokens=limits.steady_answer)


def _churn(
    prompts: Sequence[TokenIds], place: LoadPlace, limits: NeverLimits
) -> Iterator[Submission]:
    """Requests without end. The answers of the first ones are shorter, each by another number of
    tokens: so rows end one after another from the beginning, as on a server that has run before.
    """
    for number in itertools.count():
        share = min((number + 1) / place.rows, 1.0)
        max_tokens = max(1, round(share * limits.answer))
        prompt = prompts[number % len(prompts)]
        yield endless_request(str(number), prompt, _GREEDY, max_tokens=max_tokens)
