"""`python -m benchmarks churn`, from checked flags to a printed report."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.churn.random_churn import RandomChurn
from benchmarks.forced_acceptance import ChanceVerifier, accept_chance
from benchmarks.steps.bench_engines import (
    BenchTarget,
    Drafting,
    build,
    head_drafting,
    load_bench_target,
    no_drafting,
)
from benchmarks.steps.body import Body
from benchmarks.steps.step_args import Place, Tree
from outrider.bench.churn.churn_run import ChurnRun
from outrider.bench.churn.churn_table import describe_churn, print_churn
from outrider.bench.churn.churn_work import Way
from outrider.bench.churn.run_churn import Note, run_churn
from outrider.bench.machine import this_machine
from outrider.bench.report import describe_record, write_report
from outrider.bench.run_progress import run_bar
from outrider.runtime.draft_kinds import ModelDraft


def bench_churn(load: RandomChurn, body: Body, place: Place, json_path: Path | None) -> None:
    """Measure, print, and write the JSON file if one is wanted."""
    target = load_bench_target(body, place)
    ways = load.work.ways
    runs: list[ChurnRun] = []
    with run_bar(len(load.work.rows) * len(ways)) as note:
        for way in ways:
            runs += _measure(target, body, load, way=way, note=note)
    print_churn([("model", f"{body.name}, random weights, forced acceptance")], runs)
    machine = describe_record(this_machine(has_busy_neighbour=False))
    write_report(json_path, {"machine": machine, **describe_churn(runs)})


def _measure(
    target: BenchTarget, body: Body, load: RandomChurn, *, way: Way, note: Note
) -> Iterator[ChurnRun]:
    prompts = tuple(load.prompts(vocab=target.model.config.vocab_size))
    began = time.perf_counter()
    drafting = _drafting(target, body, load, way)
    loaded = build(target, drafting, rows=load.work.most_rows, context=load.longest + 8)
    yield from run_churn(
        loaded.runner,
        loaded.engine.facts,
        prompts,
        load.work,
        way=way,
        start_s=time.perf_counter() - began,
        note=note,
    )


def _drafting(target: BenchTarget, body: Body, load: RandomChurn, way: Way) -> Drafting:
    if way == "plain":
        return no_drafting()
    steps = load.draft_steps
    tree = Tree(steps=steps, topk=1, nodes=1 + steps, mean_emitted=load.emitted)
    drafting = head_drafting(target, tree, draft_vocab=body.draft_vocab)
    assert isinstance(drafting.kind, ModelDraft)
    kind = replace(drafting.kind, is_adaptive=way == "adaptive")
    # Adaptive drafting also runs shorter chains, which must emit less than the whole chain.
    chance = accept_chance(load.emitted, steps=steps)
    verifier = ChanceVerifier(chance, device=target.device)
    return replace(drafting, kind=kind, verifier=verifier)
