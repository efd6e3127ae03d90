"""The outcome of `outrider bench acceptance`: one record per answer, and what they come to."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

WIDTH = 100  # columns, wherever the output goes
ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What drafted, and under which law the target spoke."""

    drafter: str
    tree: str
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceAnswer:
    """How the drafts of one answer fared."""

    setup: Setup
    source: str
    tokens: int
    rounds: int
    kept_per_position: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceShare:
    """All answers of one setup on one source, or on all."""

    setup: Setup
    source: str
    answers: tuple[AcceptanceAnswer, ...]

    @property
    def rounds(self) -> int:
        return sum(answer.rounds for answer in self.answers)

    @property
    def kept_rates(self) -> tuple[float, ...]:
        """Share of the rounds that kept the first draft, the second, ..."""
        columns = (answer.kept_per_position for answer in self.answers)
        summed = map(sum, itertools.zip_longest(*columns, fillvalue=0))
        return tuple(kept / max(self.rounds, 1) for kept in summed)

    @property
    def accept_length(self) -> float:
        """Mean tokens per round."""
        return 1.0 + sum(self.kept_rates)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceReport:
    """Everything one run found out."""

    model: str
    device: str
    max_tokens: int
    answers: tuple[AcceptanceAnswer, ...]

    def shares(self) -> Iterator[AcceptanceShare]:
        """By setup, each source and then all of them together."""
        setups = dict.fromkeys(answer.setup for answer in self.answers)
        sources = sorted({answer.source for answer in self.answers})
        for setup in setups:
            own = tuple(answer for answer in self.answers if answer.setup == setup)
            for source in [*(sources if len(sources) > 1 else []), ALL]:
                some = tuple(each for each in own if source in (each.source, ALL))
                yield AcceptanceShare(setup=setup, source=source, answers=some)


def describe(report: AcceptanceReport) -> dict[str, Any]:
    """Every number."""
    return {
        "model": report.model,
        "device": report.device,
        "max_tokens": report.max_tokens,
        "results": [
            {
                "drafter": share.setup.drafter,
                "tree": share.setup.tree,
                "temperature": share.setup.temperature,
                "source": share.source,
                "prompts": len(share.answers),
                "tokens": sum(answer.tokens for answer in share.answers),
                "rounds": share.rounds,
                "accept_length": share.accept_length,
                "kept_rates": list(share.kept_rates),
            }
            for share in report.shares()
        ],
    }


def print_report(report: AcceptanceReport) -> None:
    """Print it on stdout."""
    console = Console(width=WIDTH, highlight=False)
    console.print(f"model      {report.model} on {report.device}", markup=False)
    console.print(f"answers    at most {report.max_tokens} tokens", markup=False)
    table = Table(box=None, collapse_padding=True, header_style="bold")
    for heading in ("drafter", "tree", "law", "source"):
        table.add_column(heading, no_wrap=True)
    for heading in ("prompts", "rounds", "tokens\n/round"):
        table.add_column(heading, justify="right")
    table.add_column("kept")
    for share in report.shares():
        table.add_row(*_row(share), end_section=share.source == ALL)
    console.print(table)
    console.print("kept: share of rounds that kept the first draft, the second, ...", style="dim")


def _row(share: AcceptanceShare) -> list[str]:
    setup = share.setup
    return [
        setup.drafter,
        setup.tree,
        f"T {setup.temperature:g}" if setup.temperature else "greedy",
        share.source,
        str(len(share.answers)),
        str(share.rounds),
        f"{share.accept_length:.2f}",
        " ".join(f"{rate:.2f}".lstrip("0") for rate in share.kept_rates),
    ]
