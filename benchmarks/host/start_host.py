"""From checked flags to a printed report: the body of `bench host`."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.host.host_args import HostArgs
from benchmarks.host.measure_host import HostCost, measure_host, place_on
from benchmarks.steps.bench_engines import resolve_place
from outrider.bench.json_file import write_json
from outrider.bench.machine import Machine, this_machine
from outrider.bench.offline.offline_table import WIDTH
from outrider.bench.run_progress import run_bar

_SHOWN = 12  # functions of a profile
_NAME_WIDTH = 72


def bench_host(args: HostArgs, device: str, targets: Sequence[Path]) -> None:
    """Measure, print, and write what was asked to be written."""
    machine, place = this_machine(has_busy_neighbour=False), place_on(device)
    device = resolve_place(place).device  # which one "auto" is
    with run_bar(len(args.rows) * (2 if args.draft_steps else 1)) as note:
        costs = measure_host(args, place, note)
    _print(machine, device, costs)
    for path in targets:
        write_json(path, _describe(machine, device, costs))


def _print(machine: Machine, device: str, costs: Sequence[HostCost]) -> None:
    console = Console(width=WIDTH, highlight=False)
    console.print(f"machine    {machine.cpu}, {machine.cores} cores, torch {machine.torch}")
    console.print(f"device     {device}, which runs nothing")
    table = Table(box=None, header_style="bold")
    table.add_column("drafts")
    for heading in ("rows", "us/step", "us/row", "slowest tenth"):
        table.add_column(heading, justify="right")
    for cost in costs:
        slow = sorted(cost.steps_s)[-max(1, len(cost.steps_s) // 10)]
        step, row = f"{cost.step_s * 1e6:.1f}", f"{cost.row_s * 1e6:.2f}"
        table.add_row(cost.way, str(cost.rows), step, row, f"{slow * 1e6:.1f}")
    console.print(table)
    for cost in costs:
        if cost.profile:
            console.print(f"\n{cost.way}, {cost.rows} rows", style="bold")
            console.print(_profile_table(cost))
    console.print("us/step: median of the timed steps, from one call to the next", style="dim")


def _profile_table(cost: HostCost) -> Table:
    table = Table(box=None, header_style="bold")
    table.add_column("function", max_width=_NAME_WIDTH, no_wrap=True)
    table.add_column("calls/step", justify="right")
    table.add_column("own us/step", justify="right")
    for share in cost.profile[:_SHOWN]:
        table.add_row(share.name, f"{share.calls:.1f}", f"{share.own_s * 1e6:.1f}")
    return table


def _describe(machine: Machine, device: str, costs: Sequence[HostCost]) -> dict[str, Any]:
    return {
        "machine": asdict(machine),
        "device": device,
        "costs": [asdict(cost) | {"step_s": cost.step_s, "row_s": cost.row_s} for cost in costs],
    }
