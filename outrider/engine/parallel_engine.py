"""Data parallelism: one engine per rank, whose steps run together.

Every rank has its own rows, pages and prefix cache. A request stays on the rank that it was given.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from functools import partial

from outrider.engine.adaptive.make_policy import make_policy
from outrider.engine.engine import Engine
from outrider.engine.failure_reason import STOPPED_MID_STEP
from outrider.engine.group_policy import GroupPolicy, MemberPolicy
from outrider.engine.prefix_cache.prefix_cache import PrefixCache
from outrider.engine.step_watch import OnSteps
from outrider.errors import ConfigError, RequestError
from outrider.wire.adapter import Adapter
from outrider.wire.embedded_span import EmbeddedSpan
from outrider.wire.engine_stats import EngineStats, joined_ranks
from outrider.wire.grammar_spec import GrammarSpec
from outrider.wire.runner_facts import GroupRunner, RunnerFacts
from outrider.wire.sleep_level import ALL_TAGS, SleepLevel, SleepTag, check_level
from outrider.wire.submission import Limits, RequestUpdate, Submission

# A rank with a cached prefix is chosen although it has this many requests more than the idlest.
_MOST_EXTRA_REQUESTS = 4

_log = logging.getLogger(__name__)


class ParallelEngine:
    """Owns the engines of all ranks, and gives every request to one of them."""

    def __init__(self, engines: Sequence[Engine], runner: GroupRunner) -> None:
        self._engines = tuple(engines)
        self._runner = runner
        self._places: dict[str, Engine] = {}  # by request id
        self._num_failed_steps = 0
        self._steps: list[tuple[str, ...]] = [() for _ in engines]  # requests in flight
        group = GroupPolicy(make_policy(self.facts.draft), len(engines))
        for rank, engine in enumerate(engines):
            engine.use_policy(MemberPolicy(group, rank))

    @property
    def has_work(self) -> bool:
        return any(engine.has_work for engine in self._engines)

    @property
    def is_over(self) -> bool:
        """Whether a rank is lost, even if no request runs; only a new process helps."""
        return bool(self._runner.loss) or any(engine.is_over for engine in self._engines)

    @property
    def stats(self) -> EngineStats:
        return joined_ranks([engine.stats for engine in self._engines])

    @property
    def caches(self) -> tuple[PrefixCache, ...]:
        """The prefix cache of each rank."""
        return tuple(cache for engine in self._engines for cache in engine.caches)

    @property
    def facts(self) -> RunnerFacts:
        return self._engines[0].facts

    @property
    def max_context(self) -> int:
        return self._engines[0].max_context

    @property
    def vocab_size(self) -> int:
        return self._engines[0].vocab_size

    @property
    def num_failed_steps(self) -> int:
        return self._num_failed_steps

    def watch_steps(self, on_steps: OnSteps) -> None:
        """Call `on_steps` before a step is submitted, if the steps in flight run other requests."""

        def note(place: int, requests: tuple[str, ...]) -> None:
            self._steps[place] = requests
            on_steps(tuple(request for step in self._steps for request in step))

        for place, engine in enumerate(self._engines):
            engine.watch_steps(partial(note, place))

    def add(self, submission: Submission, emitted: tuple[int, ...] = ()) -> None:
        """Queue a request on one rank, or refuse it with the reason."""
        if submission.sampling.grammar.is_wanted:
            self.check_grammar(submission.sampling.grammar.spec)
        if submission.request_id in self._places:
            raise RequestError(f"request id {submission.request_id!r} is already in use")
        engine = self._choose(submission)
        engine.add(submission, emitted)
        self._places[submission.request_id] = engine

    def check(
        self, prompt: tuple[int, ...], limits: Limits, embeds: Sequence[EmbeddedSpan] = ()
    ) -> None:
        self._engines[0].check(prompt, limits, embeds)

    def check_adapter(self, adapter: Adapter) -> None:
        self._engines[0].check_adapter(adapter)

    def check_grammar(self, spec: GrammarSpec) -> None:
        del spec
        raise RequestError(
            "structured output is not available with --data-parallel-size; start the server "
            "without it, or with --tensor-parallel-size"
        )

    def abort(self, request_id: str) -> None:
        engine = self._places.pop(request_id, None)
        if engine is not None:
            engine.abort(request_id)

    def tend(self) -> None:
        """Do nothing: engines with data_parallel_size above 1 have no role."""

    def abort_all(self) -> None:
        for request_id in tuple(self._places):
            self.abort(request_id)

    def flush(self) -> None:
        for engine in self._engines:
            engine.flush()

    @property
    def asleep(self) -> frozenset[SleepTag]:
        return self._engines[0].asleep

    def sleep(self, level: SleepLevel) -> None:
        """End every request and run no other. The memory of several ranks is not given back."""
        check_level(level, dp_size=len(self._engines))
        self.abort_all()
        while any(engine.in_flight for engine in self._engines):
            self.step()
        for engine in self._engines:
            engine.sleep(level)

    def wake_up(self, tags: Sequence[SleepTag] = ALL_TAGS) -> None:
        for engine in self._engines:
            engine.wake_up(tags)

    def use_head(self, folder: str) -> None:
        raise ConfigError(
            f"the ranks of --data-parallel-size cannot change to the head {folder}; restart"
        )

    def step(self) -> tuple[RequestUpdate, ...]:
        """One step of all ranks; read the oldest results if they are due."""
        refused = tuple(update for engine in self._engines for update in engine.refuse())
        if refused:
            return self._forget_ended(refused)
        try:
            return self._forget_ended(self._run())
        except Exception as error:
            _log.exception("a step of %d ranks failed", len(self._engines))
            self._end(f"a step of several ranks failed: {error}")
            return ()
        except BaseException:  # how much of the step was done on which rank is unknown
            self._end(STOPPED_MID_STEP)
            raise

    def _end(self, reason: str) -> None:
        """Stop for good, and end the other ranks."""
        self._num_failed_steps += 1
        for engine in self._engines:
            engine.end(reason)
        self._runner.close()

    def _run(self) -> tuple[RequestUpdate, ...]:
        decided = [engine.schedule() for engine in self._engines]
        is_empty = all(batch.is_empty for batch, _ in decided)
        if not is_empty:
            pending = self._runner.submit([batch for batch, _ in decided])
            for engine, (_, expected), own in zip(self._engines, decided, pending, strict=True):
                engine.track(expected, own)
        num_in_flight = len(self._engines[0].in_flight)  # the same on all ranks
        if not num_in_flight or not (num_in_flight > self.facts.depth or is_empty):
            return ()
        results = [engine.in_flight[0][1].wait() for engine in self._engines]
        updates = [
            engine.absorb(result) for engine, result in zip(self._engines, results, strict=True)
        ]
        return tuple(update for own in updates for update in own)

    def _choose(self, submission: Submission) -> Engine:
        """The rank that has most of the prompt cached, unless it is much busier than another."""
        loads = Counter(self._places.values())  # 0 for a rank without requests
        least = min(loads[engine] for engine in self._engines)
        near = [each for each in self._engines if loads[each] <= least + _MOST_EXTRA_REQUESTS]
        return max(near, key=lambda each: (_count_cached(each, submission), -loads[each]))

    def _forget_ended(self, updates: tuple[RequestUpdate, ...]) -> tuple[RequestUpdate, ...]:
        for update in updates:
            if update.finish != "running":
                self._places.pop(update.request_id, None)
        return updates


def _count_cached(engine: Engine, submission: Submission) -> int:
    """Tokens of its prompt that the prefix cache of an engine would serve."""
    (cache,) = engine.caches
    return cache.count_cached(submission.prompt, salt=submission.prefix_salt)


AnyEngine = Engine | ParallelEngine
