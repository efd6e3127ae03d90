"""What widened iterations come to: records, a table, and plain values that JSON can hold."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from benchmarks.steps.step_report import PLAIN, StepSetting
from benchmarks.steps.step_table import open_console
from benchmarks.steps.time_decode import StepFloor
from benchmarks.widen.widened_answers import Answered, WidenedSpeed, count_equal


@dataclass(frozen=True, slots=True, kw_only=True)
class WidenedOutcome:
    """One way to decode at one number of rows."""

    way: str
    rows: int
    answered: Answered
    floors: tuple[StepFloor, ...]
    memory_bytes: int

    @property
    def speed(self) -> WidenedSpeed:
        return self.answered.speed


@dataclass(frozen=True, slots=True, kw_only=True)
class WidenedReport:
    """Everything one run found out. Every number of rows was also decoded plainly."""

    setting: StepSetting
    origin: str  # of the questions
    max_tokens: int
    outcomes: tuple[WidenedOutcome, ...]

    def plain_of(self, outcome: WidenedOutcome) -> WidenedOutcome:
        (plain,) = (
            each for each in self.outcomes if each.way == PLAIN and each.rows == outcome.rows
        )
        return plain

    def speedup(self, outcome: WidenedOutcome) -> float:
        """By tokens per second, against plain decoding of as many rows."""
        return outcome.speed.tokens_per_s / self.plain_of(outcome).speed.tokens_per_s

    def equal(self, outcome: WidenedOutcome) -> tuple[int, int]:
        """Answers equal to plain decoding's, of those that both finished."""
        return count_equal(outcome.answered.answers, self.plain_of(outcome).answered.answers)


def print_report(report: WidenedReport) -> None:
    """Print it on stdout."""
    console = open_console(report.setting)
    console.print(f"questions  {report.origin}, greedy, answers of {report.max_tokens} at most")
    console.print(_table(report))
    console.print(
        "tok/s: over all timed steps, prompts of new answers included; speed-up: by tok/s, against "
        "plain\nwith as many rows. ms: median step; floor: of a step at the first bandwidth, with "
        "the tokens/round\nthat were measured. equal: answers the same as plain's, of those that "
        "both finished.",
        style="dim",
    )


def describe(report: WidenedReport) -> dict[str, Any]:
    """Every number in SI units, the single steps included."""
    return {
        "setting": asdict(report.setting),
        "questions": report.origin,
        "max_tokens": report.max_tokens,
        "outcomes": [_describe(report, each) for each in report.outcomes],
    }


def _describe(report: WidenedReport, outcome: WidenedOutcome) -> dict[str, Any]:
    speed, (equal, both) = outcome.speed, report.equal(outcome)
    return {
        "way": outcome.way,
        "rows": outcome.rows,
        "step_s": speed.step_s,
        "tokens_per_s": speed.tokens_per_s,
        "accept_length": speed.accept_length,
        "speedup": report.speedup(outcome),
        "equal_answers": equal,
        "answers_of_both": both,
        "floors": [asdict(each) | {"ratio": speed.step_s / each.step_s} for each in outcome.floors],
        "memory_bytes": outcome.memory_bytes,
        **asdict(speed),
    }


def _table(report: WidenedReport) -> Table:
    table = Table(box=None, header_style="bold", collapse_padding=True)
    table.add_column("rows", justify="right")
    table.add_column("drafts", no_wrap=True)
    headings = ("ctx", "ms", "floor", "x floor", "tokens\n/round", "tok/s", "speed-up", "equal")
    for heading in (*headings, "busy", "GiB"):
        table.add_column(heading, justify="right")
    for rows in dict.fromkeys(each.rows for each in report.outcomes):
        for outcome in report.outcomes:
            if outcome.rows == rows:
                table.add_row(*_row(report, outcome))
        table.add_section()
    return table


def _row(report: WidenedReport, outcome: WidenedOutcome) -> Iterator[str]:
    speed, floor = outcome.speed, outcome.floors[0]
    equal, both = report.equal(outcome)
    yield str(outcome.rows)
    yield outcome.way
    yield f"{speed.context:.0f}"
    yield f"{speed.step_s * 1e3:.3f}"
    yield f"{floor.step_s * 1e3:.3f}"
    yield f"{speed.step_s / floor.step_s:.2f}x"
    yield f"{speed.accept_length:.2f}"
    yield f"{speed.tokens_per_s:.0f}"
    yield f"{report.speedup(outcome):.2f}x"
    yield f"{equal}/{both}"
    yield f"{speed.occupancy:.0%}"
    yield f"{outcome.memory_bytes / 2**30:.1f}"
