"""`outrider doctor`: whether a draft head fits a model, and if not, why.

For `mtp`: which draft modules the model has.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from outrider.config.draft_config import MTP
from outrider.frontend.interrupts import import_torch
from outrider.hub.aliases import DEFAULT_ALIAS
from outrider.hub.learn_folder import (
    BEFORE_LEARNING,
    current_version,
    is_learn_folder,
    list_versions,
    version_head,
)

if TYPE_CHECKING:
    from rich.console import Console

    from outrider.cli.doctor_probe import ProbedModel
    from outrider.config.engine_config import Auto, Dtype
    from outrider.frontend.draft_probe import Probe
    from outrider.runtime.inspect_target import HeadReport, ModuleReport
    from outrider.wire.runner_facts import WeightStorage


WIDTH = 100  # columns, wherever the output goes
_ONLY_ON_CPUS = (
    "not checked: whether neighbouring layers fit better than those that the head captures; that "
    "check runs on a CPU: add --device cpu"
)


def doctor(
    head: Annotated[
        str,
        typer.Argument(
            help="Folder or hub id of a draft head or model; a --learn-folder; mtp: own modules."
        ),
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
    if is_learn_folder(Path(head)):
        head = _print_versions(console, Path(head))
    drafter = MTP if head == MTP else str(resolve_drafter(head, BarReporter()))
    target = resolve_model(model, BarReporter())
    import_torch()
    # These import torch, so wrong names fail first.
    from outrider.cli.doctor_probe import most_steps, probe
    from outrider.runtime.inspect_target import examine_head, examine_modules

    modules = examine_modules(target)
    report = modules if drafter == MTP else examine_head(Path(drafter), target)
    _print_report(console, report, fits="the modules fit" if drafter == MTP else "the head fits")
    if drafter != MTP and modules.num:
        console.print(f"note: the model has modules of its own ({modules.num}): --draft mtp")
    if report.problems:
        raise typer.Exit(1)
    if run_probe:
        steps = most_steps(target, drafter)
        found = probe(model, drafter, steps=steps, dtype=dtype, device=device)
        _print_probed(console, found, target, drafter, dtype)


def _print_versions(console: "Console", folder: Path) -> str:
    """Show what a server has learned; returns the head in use, which is examined next."""
    from rich.table import Table

    current = current_version(folder)
    table = Table(box=None, header_style="bold")
    for heading in (
        "version",
        "trained from",
        "steps",
        "texts",
        "tokens per round: before",
        "after",
    ):
        table.add_column(heading, justify="right")
    for each in list_versions(folder):
        measured = (f"{each.acceptance_before:.3f}", f"{each.acceptance_after:.3f}")
        counts = (each.version, each.parent, each.steps, each.texts)
        style = "bold" if each.version == current else None
        table.add_row(*map(str, counts), *measured, style=style)
    console.print(table)
    if current == BEFORE_LEARNING:
        console.print("version 0 is in use: the head before learning; name it to examine it")
        raise typer.Exit
    console.print(f"version {current} is in use")
    return str(version_head(folder, current))


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


def _print_probed(
    console: "Console", found: "ProbedModel", target: Path, drafter: str, dtype: "Dtype | Auto"
) -> None:
    _print_storage(console, found.weights)
    _print_probe(console, found.probe)
    if drafter == MTP:
        return
    if found.device == "cpu":
        _print_likelihood(console, target, Path(drafter), found, dtype)
    else:
        console.print(_ONLY_ON_CPUS, markup=False, soft_wrap=True)


def _print_likelihood(
    console: "Console", target: Path, head: Path, probed: "ProbedModel", dtype: "Dtype | Auto"
) -> None:
    """Compare the captured layers of a head with their neighbours."""
    from outrider.bench.head_likelihood import measure_likelihood
    from outrider.cli.doctor_probe import explain_likelihood

    chosen: Dtype = "packed" if dtype == "auto" else dtype
    found = measure_likelihood(target, head, probed.probe.texts, chosen)
    for line in explain_likelihood(found) if found else ():
        console.print(line, markup=False, soft_wrap=True)


def _print_storage(console: "Console", weights: "tuple[WeightStorage, ...]") -> None:
    """In what form the weights of the target were loaded: packed, quantised or as numbers."""
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for heading in ("weights of the target", "number", "stored as"):
        table.add_column(heading, justify="right" if heading == "number" else "left")
    for each in weights:
        table.add_row(each.modules, str(each.num), each.storage)
    if weights:
        console.print("")
        console.print(table)


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
