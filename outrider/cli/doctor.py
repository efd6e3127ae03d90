"""`outrider doctor`: whether a draft head fits a model, and if not, why.

For `mtp`: which draft modules the model has.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from outrider.config.draft_config import MTP
from outrider.frontend.interrupts import import_torch
from outrider.hub.aliases import DEFAULT_ALIAS

if TYPE_CHECKING:
    from rich.console import Console

    from outrider.frontend.draft_probe import Probe
    from outrider.runtime.inspect_target import HeadReport, ModuleReport


WIDTH = 100  # columns, wherever the output goes


def doctor(
    head: Annotated[
        str, typer.Argument(help="Folder or hub id of a draft head or model; mtp: own modules.")
    ],
    model: Annotated[
        str, typer.Option(help="The target: alias, hub id, GGUF file or folder.")
    ] = DEFAULT_ALIAS,
    run_probe: Annotated[
        bool, typer.Option("--probe/--no-probe", help="Also draft a few real prompts.")
    ] = True,
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16", "int8", "packed"],
        typer.Option(help="Type of the weights in the probe."),
    ] = "auto",
    device: Annotated[str, typer.Option(help="Of the probe: auto, cpu, cuda, cuda:1.")] = "auto",
) -> None:
    """Examine a draft head: format, tensors, widths, vocabulary, and how often it is right."""
    from rich.console import Console

    from outrider.hub.download_bars import BarReporter
    from outrider.hub.resolve_model import resolve_drafter, resolve_model

    console = Console(width=WIDTH, highlight=False)
    drafter = MTP if head == MTP else str(resolve_drafter(head, BarReporter()))
    target = resolve_model(model, BarReporter())
    import_torch()
    # These import torch, so wrong names fail first.
    from outrider.cli.doctor_probe import STEPS, probe
    from outrider.runtime.inspect_target import examine_head, examine_modules, fitting_steps

    modules = examine_modules(target)
    report = modules if drafter == MTP else examine_head(Path(drafter), target)
    _print_report(console, report, fits="the modules fit" if drafter == MTP else "the head fits")
    if drafter != MTP and modules.num:
        console.print(f"note: the model has modules of its own ({modules.num}): --draft mtp")
    if report.problems:
        raise typer.Exit(1)
    if run_probe:
        # One module is run repeatedly, like a head; of several, each drafts one step.
        own = modules.num if modules.num > 1 else STEPS
        steps = own if drafter == MTP else fitting_steps(Path(drafter), STEPS)
        _print_probe(console, probe(model, drafter, steps=steps, dtype=dtype, device=device))


def _print_report(console: "Console", report: "HeadReport | ModuleReport", *, fits: str) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for label, value in report.facts:
        table.add_row(label, escape(value))
    console.print(table)
    for note in report.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    for problem in report.problems:
        console.print(f"problem: {problem}", markup=False, soft_wrap=True, style="red")
    if not report.problems:
        console.print(f"{fits}: every tensor is there, used and of the right shape")


def _print_probe(console: "Console", probe: "Probe") -> None:
    from rich.table import Table

    from outrider.cli.doctor_probe import explain

    table = Table(box=None, header_style="bold")
    for heading in ("position", "kept", "of all rounds", "of those that got there"):
        table.add_column(heading, justify="right")
    for position, (accepted, rates) in enumerate(
        zip(probe.accepted_per_position, probe.rates(), strict=True)
    ):
        table.add_row(str(position), str(accepted), *(f"{rate:.1%}" for rate in rates))
    console.print(f"\nprobe: {probe.rounds} rounds, greedy")
    console.print(table)
    for line in explain(probe):
        console.print(line, markup=False)
