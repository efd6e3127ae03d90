"""`mixed`, from checked flags to printed lines."""

import time
from pathlib import Path

from benchmarks.steps.bench_engines import BenchTarget, load_bench_target
from benchmarks.steps.body import Body
from benchmarks.steps.decode_ways import Way, plain_way, verify_way
from benchmarks.steps.device_rates import DeviceRates, measure_rates
from benchmarks.steps.mixed_args import CONTEXT, MixedCase, MixedWork
from benchmarks.steps.mixed_report import (
    MixedLine,
    describe_mixed,
    heading,
    line_of,
    summary_of,
)
from benchmarks.steps.start_steps import setting_of
from benchmarks.steps.step_args import SKIPPED, Place, Tree
from benchmarks.steps.step_floors import mixed_passes, total_s
from benchmarks.steps.step_table import setting_lines
from benchmarks.steps.time_decode import StepFloor
from benchmarks.steps.time_mixed import MixedBench
from outrider.bench.report import ReportPrinter, write_report


def bench_mixed(body: Body, place: Place, work: MixedWork, json_path: Path | None) -> None:
    """Measure all cases; a case is printed, and the JSON file written, as soon as it is known."""
    start, printer = time.perf_counter(), ReportPrinter()
    target = load_bench_target(body, place)
    rates = measure_rates(target.device, target.model.dtype)
    setting, lines = setting_of(target, rates), []
    printer.setting(setting_lines(setting))
    for nodes in work.nodes:
        way = _way(target, nodes, rates)
        printer.title(way.name)
        printer.line(heading())
        bench = MixedBench(target, way.drafting, work, nodes=nodes)
        for case in work.cases(nodes):
            point = bench.measure(case)
            floors = _floors(target, case, rates, steps=work.steps)
            lines.append(MixedLine(way=way.name, point=point, floors=floors))
            printer.line(line_of(lines[-1]))
            write_report(json_path, describe_mixed(setting, lines))
        del bench  # its KV, before the next engine has its own
    printer.line()
    printer.line(f"{summary_of(lines)}; {time.perf_counter() - start:.0f} s in all")
    printer.note(
        "decode: a step of decode rows alone with as many query tokens; mixed: the rows with "
        "prompts beside\nthem, which it reads whole; medians of the wall clock. floor: of the "
        "mixed step. eager: timed steps\nwithout a captured graph. Drafts cost nothing here."
    )


def _way(target: BenchTarget, nodes: int, rates: tuple[DeviceRates, ...]) -> Way:
    if nodes == 1:
        return plain_way(target, "", rates)
    tree = Tree(steps=nodes - 1, topk=1, nodes=nodes, mean_emitted=1.0)
    return verify_way(target, tree, rates)


def _floors(
    target: BenchTarget, case: MixedCase, rates: tuple[DeviceRates, ...], *, steps: int
) -> tuple[StepFloor, ...]:
    passes = mixed_passes(
        target.model.config,
        target.place.dtype,
        rows=case.rows,
        nodes=case.nodes,
        context=CONTEXT + SKIPPED + steps / 2,  # every step emits a token
        prompts=(case.prompt,) * case.prompts,
    )
    return tuple(StepFloor(rates=each.name, step_s=total_s(passes, each)) for each in rates)
