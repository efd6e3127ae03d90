"""Runs loads of requests through our engine: a part of each to warm up, then all of it."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from outrider.bench.churn.churn_run import ChurnRun, ChurnTokens, LoadTime
from outrider.bench.churn.churn_work import ChurnWork
from outrider.bench.churn.observed_runner import ObservedRunner
from outrider.engine.engine import Engine
from outrider.errors import CapacityError
from outrider.runtime.runner import Runner
from outrider.wire.draft_budget import UNBOUNDED
from outrider.wire.row_sampling import RowSampling
from outrider.wire.runner_facts import RunnerFacts
from outrider.wire.submission import Limits, Progress, RequestUpdate, Submission

TokenIds = tuple[int, ...]
Note = Callable[[str], None]  # called with the name of every load as it begins


def run_churn(
    runner: Runner,
    facts: RunnerFacts,
    prompts: Sequence[TokenIds],  # requests take them in turn
    work: ChurnWork,
    *,
    way: str,
    start_s: float,
    note: Note,
) -> Iterator[ChurnRun]:
    """A load for each number of rows, one after another on one engine, as on a server."""
    observed = ObservedRunner(runner)
    engine = Engine(observed, facts)
    for rows in work.rows:
        note(f"{way}, {rows} at a time")
        warm, load = (
            take_prompts(prompts, num) for num in (work.num_warm(rows), work.num_requests(rows))
        )
        answer_requests(engine, _greedy(warm, work.answer), rows=rows)
        observed.steps.clear()
        runner.occupancy.restart()
        began = time.perf_counter()
        tokens, _ = answer_requests(engine, _greedy(load, work.answer), rows=rows)
        seconds = time.perf_counter() - began
        yield ChurnRun(
            way=way,
            rows=rows,
            time=LoadTime(seconds=seconds, occupancy=runner.occupancy.share, start_s=start_s),
            tokens=tokens,
            steps=tuple(observed.steps),
        )


def take_prompts(prompts: Sequence[TokenIds], num: int) -> list[TokenIds]:
    """The prompts of the first requests."""
    return list(itertools.islice(itertools.cycle(prompts), num))


def keep_busy(
    engine: Engine, requests: Iterable[Submission], *, rows: int
) -> Iterator[tuple[RequestUpdate, ...]]:
    """The updates of every step, until all requests are answered; one comes when another ends."""
    waiting, num_live = iter(requests), 0
    while True:
        for request in itertools.islice(waiting, rows - num_live):
            engine.add(request)
            num_live += 1
        if not num_live:
            return
        updates = engine.step()
        for update in updates:
            if update.finish == "error":
                raise CapacityError(f"an answer broke off: {update.reason}")
            num_live -= update.finish != "running"
        yield updates


def answer_requests(
    engine: Engine, requests: Sequence[Submission], *, rows: int
) -> tuple[ChurnTokens, dict[str, TokenIds]]:
    """Answer all requests. Also returns the answers, by id."""
    answers = dict.fromkeys((each.request_id for each in requests), TokenIds())
    last: dict[str, Progress] = {}
    for updates in keep_busy(engine, requests, rows=rows):
        for update in updates:
            answers[update.request_id] += tuple(update.tokens)
            last[update.request_id] = update.progress
    return sum_tokens(sum(map(len, answers.values())), last.values()), answers


def sum_tokens(emitted: int, requests: Iterable[Progress]) -> ChurnTokens:
    """The sums over these requests, which emitted so many tokens."""
    known = tuple(requests)
    return ChurnTokens(
        emitted=emitted,
        rounds=sum(each.rounds for each in known),
        drafted=sum(each.drafted for each in known),
        accepted=sum(each.num_accepted for each in known),
    )


def endless_request(
    name: str, prompt: TokenIds, sampling: RowSampling, *, max_tokens: int
) -> Submission:
    """A request whose answer no token ends."""
    return Submission(
        request_id=name,
        prompt=prompt,
        sampling=sampling,
        limits=Limits(max_tokens=max_tokens, stop_ids=frozenset()),
        budget=UNBOUNDED,
    )


def _greedy(prompts: Sequence[TokenIds], max_tokens: int) -> list[Submission]:
    greedy = RowSampling(seed=0, temperature=0.0)
    return [
        endless_request(str(index), prompt, greedy, max_tokens=max_tokens)
        for index, prompt in enumerate(prompts)
    ]
