"""Runs rounds of requests on fresh engines, all ways in turn, so that noise hits all alike."""

import gc
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from outrider.bench.adaptive.adaptive_args import AdaptiveWork, TextLevel
from outrider.bench.adaptive.timed_round import (
    ADAPTIVE,
    PLAIN,
    AdaptiveCell,
    RoundTime,
    TimedRound,
)
from outrider.bench.churn.run_churn import TokenIds, answer_requests, endless_request
from outrider.bench.policy_engine import PolicyEngine, RungsInTurn
from outrider.bench.shared_target import (
    SharedDraft,
    SharedTarget,
    build_runner,
    fit_shared_draft,
    load_shared_draft,
)
from outrider.config.draft_config import NO_DRAFT, DraftConfig, resolve_budget
from outrider.engine.engine import Engine
from outrider.wire.draft_budget import Budget, ladder_of
from outrider.wire.row_sampling import RowSampling
from outrider.wire.runner_facts import RunnerFacts, StepRunner
from outrider.wire.submission import Submission

Note = Callable[[str], None]  # called with the name of every run as it begins
Ways = Mapping[str, SharedDraft]  # by name, plain decoding first
_WARM_TEMPERATURES = (0.0, 1.0)  # greedy rows run other functions than sampled ones


def load_ways(target: SharedTarget, draft: DraftConfig, *, has_fixed: bool) -> Ways:
    """Plain decoding, adaptive drafting, and the budgets that it chooses from, each always used."""
    wanted = {PLAIN: NO_DRAFT, ADAPTIVE: replace(draft, adaptive=True)}
    tree = resolve_budget(fit_shared_draft(target, draft)).tree
    whole = Budget(steps=tree.steps, topk=tree.topk, nodes=tree.nodes)
    for rung in ladder_of(whole, is_shared=False)[1:] if has_fixed else ():
        wanted[f"{rung.drafts} drafts"] = replace(
            draft,
            adaptive=False,
            steps=rung.tree.steps,
            topk=rung.tree.topk,
            nodes=rung.tree.nodes,
        )
    return {name: load_shared_draft(target, config) for name, config in wanted.items()}


def warm_up(target: SharedTarget, ways: Ways, prompt: TokenIds, *, rows: int) -> None:
    """Load compiled functions and touch the weights, on engines that do not count."""
    for draft in ways.values():
        runner, facts = build_runner(target, draft, rows=rows)
        for num_rows in {1, rows}:  # one row runs other functions than many
            warm_rungs(runner, facts, prompt, rows=num_rows)


def warm_rungs(runner: StepRunner, facts: RunnerFacts, prompt: TokenIds, *, rows: int) -> None:
    """Run steps with every rung that adaptive drafting chooses from. It would begin with plain
    steps, and the first drafts would wait for compilers in a round that counts.
    """
    engine, draft = PolicyEngine(runner, facts), facts.draft
    rungs = (ladder_of(draft.budget, is_shared=shared) for shared in {False, draft.is_ranked})
    policy = RungsInTurn(*dict.fromkeys(itertools.chain(*rungs)))
    engine.use_policy(policy)
    for temperature in _WARM_TEMPERATURES:
        sampling = RowSampling(seed=0, temperature=temperature)
        requests = [
            endless_request(str(row), prompt, sampling, max_tokens=1 + policy.most_emitted)
            for row in range(rows)
        ]
        answer_requests(engine, requests, rows=rows)


def measure_cell(
    target: SharedTarget,
    ways: Ways,
    work: AdaptiveWork,
    prompts: Sequence[TokenIds],  # requests take them in turn
    *,
    text: TextLevel,
    rows: int,
    note: Note,
) -> AdaptiveCell:
    """All starts with one number of rows and one kind of text."""
    loads = [
        _requests(prompts, text, first=number * rows, rows=rows, max_tokens=work.answer)
        for number in range(work.rounds)
    ]
    rounds: list[TimedRound] = []
    for start in range(work.starts):
        note(f"{text.name}, {rows} rows, start {start + 1} of {work.starts}")
        rounds += _run_start(target, ways, loads, rows=rows, start=start)
    return AdaptiveCell(
        rows=rows, text=text.name, temperature=text.temperature, rounds=tuple(rounds)
    )


def _run_start(
    target: SharedTarget,
    ways: Ways,
    loads: Sequence[Sequence[Submission]],  # of every round
    *,
    rows: int,
    start: int,
) -> Iterator[TimedRound]:
    """All rounds of fresh engines, one of each way."""
    gc.collect()  # engines hold reference cycles
    engines = {
        name: Engine(*build_runner(target, draft, rows=rows)) for name, draft in ways.items()
    }
    for number, requests in enumerate(loads):
        for way in in_turn(list(engines), turn=start + number):
            began, cpu_began = time.perf_counter(), time.process_time()
            tokens, answers = answer_requests(engines[way], requests, rows=rows)
            seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
            yield TimedRound(
                way=way,
                start=start,
                number=number,
                time=RoundTime(seconds=seconds, cpu_s=cpu_s),
                tokens=tokens,
                answers=tuple(answers.values()),
            )


def in_turn(names: Sequence[str], *, turn: int) -> Iterator[str]:
    """Forwards, then backwards: the first of two runs may find colder caches."""
    return iter(names) if turn % 2 == 0 else reversed(names)


def _requests(
    prompts: Sequence[TokenIds], text: TextLevel, *, first: int, rows: int, max_tokens: int
) -> list[Submission]:
    """The requests of a round: as many prompts from the first on, each with noise of its own."""
    return [
        endless_request(
            str(index),
            prompts[index % len(prompts)],
            RowSampling(seed=index, temperature=text.temperature),
            max_tokens=max_tokens,
        )
        for index in range(first, first + rows)
    ]
