"""The results of `iteration --widened`, printed and written."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.steps.step_report import PLAIN, StepSetting
from benchmarks.steps.step_table import setting_lines
from benchmarks.steps.time_decode import StepFloor
from benchmarks.widen.widened_answers import Answered, WidenedSpeed, count_equal
from outrider.bench.report import ReportPrinter, build_table, describe_record, numbers, texts

_COLUMNS = (
    *numbers("rows"),
    *texts("drafts"),
    *numbers("ctx", "ms", "floor", "x floor", "tokens\n/round", "tok/s", "speed-up", "equal"),
    *numbers("busy", "GiB"),
)


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
    """The results of one run. Every number of rows was also decoded plainly."""

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
        """Tokens per second, relative to plain decoding of as many rows."""
        return outcome.speed.tokens_per_s / self.plain_of(outcome).speed.tokens_per_s

    def equal(self, outcome: WidenedOutcome) -> tuple[int, int]:
        """Answers equal to plain decoding's, of those that both finished."""
        return count_equal(outcome.answered.answers, self.plain_of(outcome).answered.answers)


def print_widened(report: WidenedReport) -> None:
    """Print it on stdout."""
    printer = ReportPrinter()
    printer.setting(setting_lines(report.setting))
    questions = f"{report.origin}, greedy, answers of {report.max_tokens} at most"
    printer.setting([("questions", questions)])
    printer.table(build_table(_COLUMNS, _rows(report), is_tight=True))
    printer.note(
        "tok/s: over all timed steps, prompts of new answers included; speed-up: by tok/s, against "
        "plain\nwith as many rows. ms: median step; floor: of a step at the first bandwidth, with "
        "the tokens/round\nthat were measured. equal: answers the same as plain's, of those that "
        "both finished."
    )


def describe_widened(report: WidenedReport) -> dict[str, Any]:
    """Every number in SI units, the single steps included."""
    return {
        "setting": describe_record(report.setting),
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
        "floors": [
            describe_record(each) | {"ratio": speed.step_s / each.step_s} for each in outcome.floors
        ],
        "memory_bytes": outcome.memory_bytes,
        "steps_s": speed.steps_s,
        "emitted": speed.emitted,
        "rounds": speed.rounds,
        "kept": speed.accepted,
        "context": speed.context,
        "occupancy": speed.occupancy,
    }


def _rows(report: WidenedReport) -> Iterator[tuple[str, ...]]:
    for rows in dict.fromkeys(each.rows for each in report.outcomes):
        yield from (tuple(_row(report, each)) for each in report.outcomes if each.rows == rows)


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
