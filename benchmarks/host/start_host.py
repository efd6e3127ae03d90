"""`python -m benchmarks host`, from checked flags to a printed report."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.host.host_args import HostArgs
from benchmarks.host.measure_host import HostCost, measure_host, place_on
from benchmarks.steps.bench_engines import resolve_place
from outrider.bench.machine import Machine, this_machine
from outrider.bench.report import (
    Column,
    ReportPrinter,
    build_table,
    describe_record,
    numbers,
    wrapped,
    write_report,
)
from outrider.bench.run_progress import run_bar

_SHOWN = 12  # functions of a profile
_COLUMNS = (*wrapped("drafts"), *numbers("rows", "us/step", "us/row", "slowest tenth"))
_PROFILE_COLUMNS = (
    Column(title="function", justify="left", no_wrap=True, max_width=72),
    *numbers("calls/step", "own us/step"),
)


def bench_host(args: HostArgs, device: str, json_path: Path | None) -> None:
    """Measure, print, and write the JSON file if one is wanted."""
    machine, place = this_machine(has_busy_neighbour=False), place_on(device)
    device = resolve_place(place).device  # replaces "auto"
    with run_bar(len(args.rows) * (2 if args.draft_steps else 1)) as note:
        costs = measure_host(args, place, note)
    _print(machine, device, costs)
    write_report(json_path, _describe(machine, device, costs))


def _print(machine: Machine, device: str, costs: Sequence[HostCost]) -> None:
    printer = ReportPrinter()
    printer.setting(
        [
            ("machine", f"{machine.cpu}, {machine.cores} cores, torch {machine.torch}"),
            ("device", f"{device}, which runs nothing"),
        ]
    )
    printer.table(build_table(_COLUMNS, map(_row, costs)))
    for cost in costs:
        if cost.profile:
            printer.title(f"{cost.way}, {cost.rows} rows")
            printer.table(_profile_table(cost))
    printer.note("us/step: median of the timed steps, from one call to the next")


def _row(cost: HostCost) -> tuple[str, ...]:
    slow_s = sorted(cost.steps_s)[-max(1, len(cost.steps_s) // 10)]
    times = f"{cost.step_s * 1e6:.1f}", f"{cost.row_s * 1e6:.2f}", f"{slow_s * 1e6:.1f}"
    return (cost.way, str(cost.rows), *times)


def _profile_table(cost: HostCost) -> Table:
    rows = (
        (share.name, f"{share.calls:.1f}", f"{share.own_s * 1e6:.1f}")
        for share in cost.profile[:_SHOWN]
    )
    return build_table(_PROFILE_COLUMNS, rows)


def _describe(machine: Machine, device: str, costs: Sequence[HostCost]) -> dict[str, Any]:
    return {
        "machine": describe_record(machine),
        "device": device,
        "costs": [describe_record(cost, "step_s", "row_s") for cost in costs],
    }
