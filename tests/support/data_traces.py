"""Random arrivals on ranks with requests of their own, which run steps together, in threads."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from outrider.engine.engine import Engine
from outrider.engine.parallel_engine import ParallelEngine
from outrider.kv.kv_pool import KVPool, PagePool
from outrider.models.deepseek_v4.compressed_cache import CompressedPool
from outrider.runtime.build_runner import assemble_runner
from outrider.runtime.data_ranks import StepAgreement
from outrider.runtime.runner import AgreedStep, InFlightStep, Runner
from outrider.wire.engine_stats import StepCounts
from outrider.wire.runner_facts import RunnerFacts
from outrider.wire.scheduled_batch import EMPTY_BATCH, ScheduledBatch
from support import matrix
from support.engines import Shape, buckets_of, make_submission, settings_of
from support.rank_models import ROW_STATE, RankedModels
from support.reference import decode
from support.row_harness import PAGE_SIZE
from support.thread_ranks import ThreadGroup

NUM_REQUESTS = 6
IDLE_STEPS = 10  # in a row, on at least one rank
SAMPLINGS = ["greedy", "sampled", "warped"]


class StepFailed(Exception):
    """Ranks did not make the same collectives, or one of them raised."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What one run is made of."""

    family: str
    size: int
    drafter: str
    seed: int
    executor: str = "eager"
    pad: int = 1

    def __str__(self) -> str:
        parts = (self.family, f"dp{self.size}", self.drafter, self.executor, f"pad{self.pad}")
        return "-".join((*parts, str(self.seed)))


def random_trace(rng: random.Random, *, families: dict[str, tuple[str, ...]]) -> Trace:
    family = rng.choice(list(families))
    return Trace(
        family=family,
        size=rng.choice([2, 3]),
        drafter=rng.choice(families[family]),
        seed=rng.randrange(10**6),
        executor=rng.choice(["eager", "tape"]),
        pad=rng.choice([1, 4]),
    )


class ThreadRunner:
    """The runners of all ranks. It notes how long ranks were idle, and that idling writes nothing.

    The group of threads fails a step in which ranks make different numbers of collectives.
    """

    loss = ""

    def __init__(self, group: ThreadGroup, runners: list[Runner]) -> None:
        self.runners = runners
        self._group = group
        self._agreement = StepAgreement(len(runners))
        self._idle = [0] * len(runners)
        self.most_idle = 0
        self.num_collectives = 0

    def submit(self, batches: Sequence[ScheduledBatch]) -> Sequence[InFlightStep]:
        agreed = self.agree(batches)
        before = [
            pages_of(runner) if batch.is_empty else []
            for runner, batch in zip(self.runners, batches, strict=True)
        ]
        steps = self._group.run(lambda rank: self.run(rank, batches[rank], agreed))
        self.num_collectives += self._group.ranks[0].num_calls
        for rank, batch in enumerate(batches):
            self._idle[rank] = self._idle[rank] + 1 if batch.is_empty else 0
            for old, new in zip(before[rank], pages_of(self.runners[rank]), strict=False):
                assert torch.equal(old, new), f"rank {rank} had no request and wrote to a page"
        self.most_idle = max(self.most_idle, *self._idle)
        return steps

    def close(self) -> None:
        pass  # threads of a group are idle between steps

    def agree(self, batches: Sequence[ScheduledBatch]) -> AgreedStep:
        return self._agreement.agree(batches)

    def run(self, rank: int, batch: ScheduledBatch, agreed: AgreedStep) -> InFlightStep:
        return self.runners[rank].submit(batch, agreed)


class OneRankRunner:
    """One rank as the runner of its engine; only its counts are read."""

    def __init__(self, runner: Runner, group: ThreadRunner, rank: int) -> None:
        self._runner = runner
        self._group = group
        self._rank = rank

    @property
    def counts(self) -> StepCounts:
        return self._runner.counts

    def submit(self, batch: ScheduledBatch) -> InFlightStep:
        batches = [EMPTY_BATCH] * len(self._group.runners)
        batches[self._rank] = batch
        return self._group.submit(batches)[self._rank]

    def restart(self) -> None:
        raise RuntimeError("a step failed")


def pages_of(runner: Runner) -> list[torch.Tensor]:
    """Copies of all pages but page 0, and of row states but row 0, of target and drafter."""
    state = runner._program.state
    num_rows = state.rows.lengths.shape[0]
    kept = [part for pool in state.pages._pools for part in others_of(pool, num_rows)]
    return [part.clone() for part in kept if part.numel()]


def others_of(pool: PagePool, num_rows: int) -> Iterator[torch.Tensor]:
    """What requests may own of a cache."""
    if isinstance(pool, CompressedPool):
        for store in pool.layers:
            for ring in store.ring_buffers:
                yield ring[ring.shape[0] // num_rows :]
            for part in store.paged:
                yield part[part.shape[0] // pool._num_pages :]
    else:
        assert isinstance(pool, KVPool), "the families of these traces have no other"
        yield pool.storage[:, 1:]


def runner_of(models: RankedModels, trace: Trace) -> tuple[ThreadRunner, RunnerFacts]:
    budget = matrix.TREES["chain"]
    nodes = 1 if trace.drafter == "none" else budget.nodes
    has_rows = trace.family in ROW_STATE
    shape = Shape(
        page_size=PAGE_SIZE if has_rows else 4,
        pad=trace.pad,
        executor=trace.executor,
        step_tokens=4 * nodes + 9,
    )
    drafts = models.drafts(trace.drafter, budget)

    def assemble(rank: int) -> tuple[Runner, RunnerFacts]:
        return assemble_runner(
            models.targets[rank],
            settings_of(shape),
            draft=drafts[rank],
            kv_tokens=shape.kv_tokens,
            buckets=buckets_of(shape),
            ranks=models.shared_by[rank],
        )

    built = models.group.run(assemble)
    return ThreadRunner(models.group, [runner for runner, _ in built]), built[0][1]


def engine_of(models: RankedModels, trace: Trace, wrap=lambda runner: runner) -> ParallelEngine:
    """An engine over all ranks; `wrap` may replace what runs their steps."""
    built, facts = runner_of(models, trace)
    runner = wrap(built)
    own = [OneRankRunner(each, runner, rank) for rank, each in enumerate(runner.runners)]
    return ParallelEngine([Engine(each, facts) for each in own], runner)


def run_trace(models: RankedModels, trace: Trace, wrap=lambda runner: runner) -> list[str]:
    """Run a trace; what differs from the reference decoder, in words."""
    rng = random.Random(trace.seed)
    engine = engine_of(models, trace, wrap)
    vocab = engine.vocab_size
    submissions = [
        make_submission(
            f"r{index}",
            [rng.randrange(3, vocab) for _ in range(rng.randrange(2, 24))],
            matrix.sampling_of(rng.choice(SAMPLINGS), index),
            max_tokens=30 if index == 0 else rng.randrange(1, 9),
        )
        for index in range(NUM_REQUESTS)
    ]
    # The first request runs alone for a while: all other ranks are idle.
    arrivals = [0, *sorted(rng.randrange(12, 26) for _ in submissions[1:])]
    outputs: dict[str, list[int]] = {each.request_id: [] for each in submissions}
    step = 0
    while engine.has_work or step <= arrivals[-1]:
        for submission, arrival in zip(submissions, arrivals, strict=True):
            if arrival == step:
                engine.add(submission)
        for update in engine.step() if engine.has_work else ():
            outputs[update.request_id] += update.tokens
        if engine.is_over:
            raise StepFailed
        step += 1
    return [
        f"{each.request_id}: {outputs[each.request_id]}, not {right}"
        for each in submissions
        if outputs[each.request_id] != (right := right_answer(models, each))
    ]


def right_answer(models: RankedModels, submission) -> list[int]:
    how = {"max_tokens": submission.limits.max_tokens}
    return decode(models.family.theirs, list(submission.prompt), submission.sampling, **how).tokens
