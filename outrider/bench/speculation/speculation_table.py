"""The report for people and for machines."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from outrider.bench.speculation.speculation_report import PLAIN, SpeculationReport, TimeShare

WIDTH = 100  # columns, wherever the output goes
_HEADINGS = ("tokens/s", "vs plain", "tokens\n/round", "draft\nms", "verify\nms", "catch-up\nms")


def print_report(report: SpeculationReport) -> None:
    """Print it on stdout."""
    console = Console(width=WIDTH, highlight=False)
    for line in _heading(report):
        console.print(line, markup=False, soft_wrap=True)
    console.print(_table(report))
    if report.num_different:
        line = f"{report.num_different} answers differ from plain decoding: run outrider check"
        console.print(line, style="red")
    console.print(
        "draft, verify, catch-up: per round. kept: share of rounds that kept the first draft,\n"
        "the second, ...; tokens per round = 1 + their sum.",
        style="dim",
    )


def describe(report: SpeculationReport) -> dict[str, Any]:
    """Every number in SI units, the single runs included."""
    setting = report.setting
    return {
        "model": setting.model,
        "machine": asdict(setting.machine),
        "dtype": setting.dtype,
        "temperature": setting.temperature,
        "max_tokens": setting.max_tokens,
        "answers_that_differ": report.num_different,
        "results": [_describe_share(report, share) for share in _shares(report)],
        "runs": [asdict(run) | {"tokens": len(run.tokens)} for run in report.runs],
    }


def _shares(report: SpeculationReport) -> Iterator[TimeShare]:
    for kind in report.kinds:
        for drafter in report.drafters:
            yield report.share(kind, drafter)


def _describe_share(report: SpeculationReport, share: TimeShare) -> dict[str, Any]:
    rounds = max(share.rounds, 1)
    return {
        "kind": share.kind,
        "drafter": share.drafter,
        "prompts": len(share.runs),
        "tokens_per_s": share.tokens_per_s,
        "speedup": report.speedup(share),
        "accept_length": share.accept_length,
        "kept_rates": list(share.kept_rates),
        "draft_s": share.cost.draft_s / rounds,
        "verify_s": share.cost.verify_s / rounds,
        "catch_up_s": share.cost.catch_up_s / rounds,
    }


def _heading(report: SpeculationReport) -> Iterator[str]:
    setting, machine = report.setting, report.setting.machine
    sampling = "greedy" if setting.temperature == 0 else f"temperature {setting.temperature:g}"
    yield f"model      {setting.model}, {setting.dtype}"
    yield (
        f"machine    {machine.cpu}, {machine.cores} cores, {machine.threads} threads, "
        f"torch {machine.torch}"
    )
    yield f"answers    one at a time, {sampling}, at most {setting.max_tokens} tokens"


def _table(report: SpeculationReport) -> Table:
    table = Table(box=None, collapse_padding=True, header_style="bold")
    for heading in ("kind", "drafter"):
        table.add_column(heading, no_wrap=True)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right")
    table.add_column("kept")
    for kind in report.kinds:
        for drafter in report.drafters:
            table.add_row(*_row(report, report.share(kind, drafter)))
        table.add_section()
    return table


def _row(report: SpeculationReport, share: TimeShare) -> list[str]:
    rounds, cost = max(share.rounds, 1), share.cost
    seconds = (cost.draft_s, cost.verify_s, cost.catch_up_s)
    is_plain = share.drafter == PLAIN
    return [
        share.kind,
        share.drafter,
        f"{share.tokens_per_s:.1f}",
        "" if is_plain else f"{report.speedup(share):.2f}x",
        "" if is_plain else f"{share.accept_length:.2f}",
        *(f"{each / rounds * 1e3:.1f}" for each in seconds),
        " ".join(f"{rate:.2f}".lstrip("0") for rate in share.kept_rates),
    ]
