"""`python -m benchmarks churn`, from checked flags to a printed report."""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.churn.churn_args import ChurnArgs, Way
from benchmarks.churn.churn_load import ChurnRun, ChurnStep, run_load
from benchmarks.forced_acceptance import ChanceVerifier
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
from outrider.bench.machine import this_machine
from outrider.bench.report import (
    ReportPrinter,
    build_table,
    describe_record,
    numbers,
    wrapped,
    write_report,
)
from outrider.bench.run_progress import run_bar
from outrider.runtime.draft_kinds import ModelDraft

_RUNS = (
    *wrapped("way"),
    *numbers("rows", "tok/s", "to plain", "eager steps", "device busy", "start s"),
)
_KINDS = (
    *wrapped("way"),
    *wrapped("steps"),
    *numbers("rows", "share of time", "count", "eager", "tokens", "ms", "us/token", "submit ms"),
)


def bench_churn(args: ChurnArgs, body: Body, place: Place, json_path: Path | None) -> None:
    """Measure, print, and write the JSON file if one is wanted."""
    target = load_bench_target(body, place)
    with run_bar(len(args.rows) * len(args.ways)) as note:
        runs = []
        for rows in args.rows:
            for way in args.ways:
                note(f"{way}, {rows} at a time")
                runs.append(_measure(target, body, args, way=way, rows=rows))
    _print(body.name, runs)
    machine = describe_record(this_machine(has_busy_neighbour=False))
    write_report(json_path, {"machine": machine, "runs": [_describe(run) for run in runs]})


def _measure(target: BenchTarget, body: Body, args: ChurnArgs, *, way: Way, rows: int) -> ChurnRun:
    longest = args.prompt + args.prompt // 2 + args.answer
    began = time.perf_counter()
    loaded = build(target, _drafting(target, body, args, way), rows=rows, context=longest + 8)
    start_s = time.perf_counter() - began
    return replace(run_load(loaded, args, way=way, rows=rows), start_s=start_s)


def _drafting(target: BenchTarget, body: Body, args: ChurnArgs, way: Way) -> Drafting:
    if way == "plain":
        return no_drafting()
    steps = args.draft_steps
    tree = Tree(steps=steps, topk=1, nodes=1 + steps, mean_emitted=args.emitted)
    drafting = head_drafting(target, tree, draft_vocab=body.draft_vocab)
    assert isinstance(drafting.kind, ModelDraft)
    kind = replace(drafting.kind, is_adaptive=way == "adaptive")
    # Adaptive drafting also runs shorter chains, which must emit less than the whole chain.
    verifier = ChanceVerifier(args.emitted, steps=steps, device=target.device)
    return replace(drafting, kind=kind, verifier=verifier)


def _print(name: str, runs: Sequence[ChurnRun]) -> None:
    printer = ReportPrinter()
    printer.setting([("model", f"{name}, random weights, forced acceptance")])
    plain = {run.rows: run.tokens_per_s for run in runs if run.way == "plain"}
    printer.table(build_table(_RUNS, (_run_row(run, plain.get(run.rows)) for run in runs)))
    printer.table(build_table(_KINDS, (row for run in runs for row in _kind_rows(run))))
    printer.note("ms: median on the device; tokens: mean query tokens of a step, without padding")


def _run_row(run: ChurnRun, plain: float | None) -> tuple[str, ...]:
    num_eager = sum(step.is_eager for step in run.steps)
    return (
        run.way,
        str(run.rows),
        f"{run.tokens_per_s:,.0f}",
        f"{run.tokens_per_s / plain:.2f}x" if plain else "",
        f"{num_eager / len(run.steps):.1%}",
        f"{run.occupancy:.1%}",
        f"{run.start_s:.1f}",
    )


def _kind_rows(run: ChurnRun) -> Iterator[tuple[str, ...]]:
    for kind, steps in _by_kind(run).items():
        busy_s = [step.busy_s for step in steps]
        tokens = statistics.mean(step.decode_tokens + step.prompt_tokens for step in steps)
        median_s = statistics.median(busy_s)
        yield (
            run.way,
            kind,
            str(run.rows),
            f"{sum(busy_s) / run.seconds:.1%}",
            str(len(steps)),
            str(sum(step.is_eager for step in steps)),
            f"{tokens:.0f}",
            f"{median_s * 1e3:.2f}",
            f"{sum(busy_s) / tokens / len(steps) * 1e6:.1f}",
            f"{statistics.median(step.submit_s for step in steps) * 1e3:.2f}",
        )


def _by_kind(run: ChurnRun) -> dict[str, list[ChurnStep]]:
    kinds: dict[str, list[ChurnStep]] = {}
    for step in run.steps:
        kinds.setdefault(step.kind, []).append(step)
    return kinds


def _describe(run: ChurnRun) -> dict[str, Any]:
    return describe_record(run, "tokens_per_s")
