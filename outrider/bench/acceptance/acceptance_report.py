"""The results of `outrider bench acceptance`, printed and written."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from outrider.bench.accepted_rates import accepted_rates, format_rates
from outrider.bench.report import ReportPrinter, build_table, numbers, texts, wrapped

ALL = "all"
_COLUMNS = (
    *texts("drafter", "tree", "sampling", "source"),
    *numbers("prompts", "rounds", "tokens\n/round"),
    *wrapped("kept"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Which drafter ran with which tree, and how the target sampled."""

    drafter: str
    tree: str
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceAnswer:
    """One answer, and how many of its drafts were accepted."""

    setup: Setup
    source: str
    tokens: int
    rounds: int
    accepted_per_position: tuple[int, ...]


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
    def accepted_rates(self) -> tuple[float, ...]:
        """Share of the rounds that accepted the first draft, the second, ..."""
        counts = (answer.accepted_per_position for answer in self.answers)
        return accepted_rates(counts, rounds=self.rounds)

    @property
    def accept_length(self) -> float:
        """Mean tokens per round."""
        return 1.0 + sum(self.accepted_rates)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceReport:
    """The results of one run."""

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


def describe_acceptance(report: AcceptanceReport) -> dict[str, Any]:
    """Every number, by setup and source."""
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
                "kept_rates": list(share.accepted_rates),
            }
            for share in report.shares()
        ],
    }


def print_acceptance(report: AcceptanceReport) -> None:
    """Print it on stdout."""
    printer = ReportPrinter()
    printer.setting(
        [
            ("model", f"{report.model} on {report.device}"),
            ("answers", f"at most {report.max_tokens} tokens"),
        ]
    )
    printer.table(build_table(_COLUMNS, map(_row, report.shares()), is_tight=True))
    printer.note("kept: share of rounds that accepted the first draft, the second, ...")


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
        format_rates(share.accepted_rates),
    ]
