"""Runs a load of requests through our engine: a part of it to warm up, then all of it."""

import itertools
import time
from collections.abc import Sequence

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

AHEAD = 8  # requests that wait while all rows are in use

TokenIds = tuple[int, ...]


def run_churn(
    runner: Runner,
    facts: RunnerFacts,
    prompts: Sequence[TokenIds],  # requests take them in turn
    work: ChurnWork,
    *,
    way: str,
    start_s: float,
) -> ChurnRun:
    """The load at as many rows as the runner has."""
    observed, rows = ObservedRunner(runner), facts.host.max_rows
    engine = Engine(observed, facts)
    _answer(engine, take_prompts(prompts, work.num_warm(rows)), work.answer)
    observed.steps.clear()
    runner.occupancy.restart()
    began = time.perf_counter()
    tokens = _answer(engine, take_prompts(prompts, work.requests), work.answer)
    seconds = time.perf_counter() - began
    return ChurnRun(
        way=way,
        rows=rows,
        time=LoadTime(seconds=seconds, occupancy=runner.occupancy.share, start_s=start_s),
        tokens=tokens,
        steps=tuple(observed.steps),
    )


def take_prompts(prompts: Sequence[TokenIds], num: int) -> list[TokenIds]:
    """The prompts of the first requests."""
    return list(itertools.islice(itertools.cycle(prompts), num))


def _answer(engine: Engine, prompts: Sequence[TokenIds], max_tokens: int) -> ChurnTokens:
    """Answer all prompts; a few more than there are rows are in the engine at a time."""
    most, num_added, emitted = engine.facts.host.max_rows + AHEAD, 0, 0
    ended: list[Progress] = []
    while len(ended) < len(prompts):
        while num_added < len(prompts) and num_added - len(ended) < most:
            engine.add(_request(str(num_added), prompts[num_added], max_tokens))
            num_added += 1
        for update in engine.step():
            emitted += len(update.tokens)
            if update.finish == "error":
                raise CapacityError(f"an answer broke off: {update.reason}")
            if update.finish != "running":
                ended.append(update.progress)
    return ChurnTokens(
        emitted=emitted,
        rounds=sum(each.rounds for each in ended),
        drafted=sum(each.drafted for each in ended),
        accepted=sum(each.num_accepted for each in ended),
    )


def _request(name: str, prompt: TokenIds, max_tokens: int) -> Submission:
    """Answered greedily; no token ends the answer."""
    return Submission(
        request_id=name,
        prompt=prompt,
        sampling=RowSampling(seed=0, temperature=0.0),
        limits=Limits(max_tokens=max_tokens, stop_ids=frozenset()),
        budget=UNBOUNDED,
    )
