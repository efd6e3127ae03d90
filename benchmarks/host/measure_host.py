"""Times steps of the real engine, from the scheduler to the updates, while no step runs."""

import cProfile
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType

from benchmarks.host.host_args import HostArgs
from benchmarks.host.idle_executor import IdleExecutor
from benchmarks.steps.bench_engines import (
    BenchTarget,
    Drafting,
    LoadedEngine,
    load_bench_target,
    no_drafting,
)
from benchmarks.steps.body import find_body
from benchmarks.steps.free_drafter import FixedDraft
from benchmarks.steps.steady_rows import under_way
from benchmarks.steps.step_args import Case, Place, StepWork
from benchmarks.steps.time_decode import checked_reach, engine_for
from outrider.engine.engine import Engine
from outrider.ops.tree.verify import verify
from outrider.wire.draft_budget import Budget

Note = Callable[[str], None]  # called with the name of every run as it begins

_BODY = "tiny"  # never runs
_PROMPT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCost:
    """Consecutive steps of so many rows."""

    way: str
    rows: int
    steps_s: tuple[float, ...]  # wall time of each
    profile: tuple["FunctionShare", ...]  # with --profile, else empty

    @property
    def step_s(self) -> float:
        return statistics.median(self.steps_s)

    @property
    def row_s(self) -> float:
        return self.step_s / self.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionShare:
    """A function's part of a step."""

    name: str
    calls: float  # per step
    own_s: float  # per step; the profiler itself slows every call


def place_on(device: str) -> Place:
    """The place of an engine that runs nothing."""
    return Place(
        device=device, dtype="float32", executor="eager", is_deterministic=False, step_tokens=512
    )


def measure_host(args: HostArgs, place: Place, note: Note) -> tuple[HostCost, ...]:
    """Every way to draft at every number of rows."""
    target = load_bench_target(find_body(_BODY), place)
    ways = tuple(_ways(args.draft_steps))
    # All are checked before the first is measured.
    for (_, drafting), rows in itertools.product(ways, args.rows):
        flags = "--tokens, --draft-steps or --rows"
        checked_reach(target, drafting, _work(rows, args.steps), flags=flags)
    return tuple(
        cost for way, drafting in ways for cost in _measure_way(target, way, drafting, args, note)
    )


def _ways(draft_steps: int) -> Iterator[tuple[str, Drafting]]:
    yield "plain", no_drafting()
    if draft_steps:
        chain = Budget(steps=draft_steps, topk=1, nodes=1 + draft_steps)
        yield f"chain of {draft_steps}", Drafting(kind=FixedDraft(budget=chain), verifier=verify)


def _work(rows: int, steps: int) -> StepWork:
    return StepWork(cases=(Case(rows=rows, prompt=_PROMPT),), steps=steps)


def _measure_way(
    target: BenchTarget, way: str, drafting: Drafting, args: HostArgs, note: Note
) -> Iterator[HostCost]:
    for rows in args.rows:
        note(f"{way}, {rows} rows")
        work = _work(rows, args.steps)
        executor = IdleExecutor(emitted=args.emitted, device=target.device)
        loaded = engine_for(target, drafting, work, executor)
        yield HostCost(
            way=way,
            rows=rows,
            steps_s=_time_steps(loaded, work),
            profile=_profile(loaded, work) if args.has_profile else (),
        )


def _time_steps(loaded: LoadedEngine, work: StepWork) -> tuple[float, ...]:
    with under_way(loaded.engine, work.cases[0]):
        times = [time.perf_counter()]
        for _ in range(work.steps):
            loaded.engine.step()
            times.append(time.perf_counter())
    return tuple(after - before for before, after in itertools.pairwise(times))


def _profile(loaded: LoadedEngine, work: StepWork) -> tuple[FunctionShare, ...]:
    """The functions of a step, the slowest first."""
    profiler = cProfile.Profile()
    with under_way(loaded.engine, work.cases[0]):
        profiler.runcall(_step_on, loaded.engine, work.steps)
    shares = [
        FunctionShare(
            name=_name(entry.code),
            calls=entry.callcount / work.steps,
            own_s=entry.inlinetime / work.steps,
        )
        for entry in profiler.getstats()
    ]
    return tuple(sorted(shares, key=lambda share: -share.own_s))


def _name(code: CodeType | str) -> str:
    """A function's path in the package; a built-in function has a name only."""
    if isinstance(code, str):
        return code
    place = code.co_filename.rpartition("outrider/")[2]
    return f"{place}:{code.co_firstlineno} {code.co_name}"


def _step_on(engine: Engine, steps: int) -> None:
    for _ in range(steps):
        engine.step()
