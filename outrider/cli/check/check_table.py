"""Prints a check while it runs: a line per configuration, its mismatches, and a summary."""

from collections.abc import Iterable

from rich.console import Console

from outrider.cli.check.run_check import Finding

WIDTH = 100  # columns, wherever the output goes
_MAX_LINES = 20  # mismatches that are printed
_COLUMNS = "{:<7} {:<22} {:<10} {:<8} {:>7} {:>11} {:>13}"
_HEADINGS = ("drafts", "sampling", "executor", "overlap", "tokens", "mismatches", "tokens/round")


def print_findings(findings: Iterable[Finding]) -> bool:
    """Print each finding on stdout as soon as it is made. Returns whether no answer differed."""
    console = Console(width=WIDTH, highlight=False)
    console.print(_COLUMNS.format(*_HEADINGS), style="bold")
    num_findings = num_tokens = num_mismatches = 0
    for finding in findings:
        console.print(_row(finding), style="red" if finding.mismatches else "", markup=False)
        for line in _mismatch_lines(finding)[: max(_MAX_LINES - num_mismatches, 0)]:
            console.print(line, style="red", markup=False)
        console.file.flush()  # a pipe or a file gets the line now
        num_findings += 1
        num_tokens += finding.num_tokens
        num_mismatches += len(finding.mismatches)
    if num_mismatches > _MAX_LINES:
        console.print(f"and {num_mismatches - _MAX_LINES} more", style="red")
    differing = f"{num_mismatches} answers differ"
    summary = differing if num_mismatches else "every token is that of plain decoding"
    console.print(f"{num_findings} configurations, {num_tokens} tokens compared: {summary}")
    return not num_mismatches


def _row(finding: Finding) -> str:
    configuration = finding.configuration
    return _COLUMNS.format(
        configuration.name,
        finding.sampling,
        configuration.executor,
        "yes" if configuration.depth else "no",
        finding.num_tokens,
        len(finding.mismatches),
        f"{finding.accept_length:.2f}",
    )


def _mismatch_lines(finding: Finding) -> list[str]:
    return [
        f"{finding.configuration.name}, {finding.sampling}, {finding.configuration.executor}, "
        f"overlap {finding.configuration.depth}, prompt {mismatch.prompt} "
        f"{'alone' if mismatch.is_alone else 'in a batch'}: {mismatch.difference}"
        for mismatch in finding.mismatches
    ]
