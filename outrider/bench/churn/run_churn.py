"""Runs loads of requests through our engine: a part of each to warm up, then all of it."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence

from outrider.bench.churn.churn_run import ChurnRun, ChurnTokens, LoadTime
from outrider.bench.churn.churn_work import ChurnWork
from outrider.bench.churn.observed_runner import ObservedRunner
from outrider.engine.engine import Engine
from outrider.errors import CapacityError
from outrider.runtime.runner import Runner
from outrider.wire.draft_budget import UNBOUNDED
from outrider.wire.row_sampling import RowSampling
from outrider.wire.runner_facts import RunnerFacts
from outrider.wire.submission import Limits, Progress, Submission

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


def answer_requests(
    engine: Engine, requests: Sequence[Submission], *, rows: int
) -> tuple[ChurnTokens, dict[str, TokenIds]]:
    """Answer all requests; one comes when another one ends. Also returns the answers, by id."""
    num_added, answers = 0, dict.fromkeys((each.request_id for each in requests), TokenIds())
    ended: list[Progress] = []
    while len(ended) < len(requests):
        while num_added < len(requests) and num_added - len(ended) < rows:
            engine.add(requests[num_added])
            num_added += 1
        for update in engine.step():
            answers[update.request_id] += tuple(update.tokens)
            if update.finish == "error":
                raise CapacityError(f"an answer broke off: {update.reason}")
            if update.finish != "running":
                ended.append(update.progress)
    tokens = ChurnTokens(
        emitted=sum(map(len, answers.values())),
        rounds=sum(each.rounds for each in ended),
        drafted=sum(each.drafted for each in ended),
        accepted=sum(each.num_accepted for each in ended),
    )
    return tokens, answers


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
