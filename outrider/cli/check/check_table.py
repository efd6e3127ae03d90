"""Prints the result of a check: a table, one line per mismatch, and a summary."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from outrider.cli.check.run_check import Finding

WIDTH = 100  # columns, wherever the output goes
_MAX_LINES = 20


def print_findings(findings: Sequence[Finding]) -> None:
    """Print everything on stdout."""
    console = Console(width=WIDTH, highlight=False)
    console.print(_table(findings))
    lines = list(_mismatch_lines(findings))
    for line in lines[:_MAX_LINES]:
        console.print(line, style="red", markup=False)
    if len(lines) > _MAX_LINES:
        console.print(f"and {len(lines) - _MAX_LINES} more", style="red")
    num_tokens = sum(finding.num_tokens for finding in findings)
    summary = f"{len(lines)} answers differ" if lines else "every token is that of plain decoding"
    console.print(f"{len(findings)} configurations, {num_tokens} tokens compared: {summary}")


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(box=None, header_style="bold")
    for heading in ("drafts", "sampling", "executor", "overlap"):
        table.add_column(heading)
    for heading in ("tokens", "mismatches", "tokens/round"):
        table.add_column(heading, justify="right")
    for finding in findings:
        configuration = finding.configuration
        table.add_row(
            configuration.name,
            finding.sampling,
            configuration.executor,
            "yes" if configuration.depth else "no",
            str(finding.num_tokens),
            str(len(finding.mismatches)),
            f"{finding.accept_length:.2f}",
            style="red" if finding.mismatches else "",
        )
    return table


def _mismatch_lines(findings: Sequence[Finding]) -> list[str]:
    return [
        f"{finding.configuration.name}, {finding.sampling}, {finding.configuration.executor}, "
        f"overlap {finding.configuration.depth}, prompt {mismatch.prompt} "
        f"{'alone' if mismatch.is_alone else 'in a batch'}: {mismatch.difference}"
        for finding in findings
        for mismatch in finding.mismatches
    ]
