"""The results of `outrider bench accuracy`, printed and written."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outrider.bench.accuracy.accuracy_task import AccuracyTask, Problem, last_number
from outrider.bench.report import ReportPrinter, build_table, numbers, texts
from outrider.frontend.outputs import Acceptance

PLAIN = "none"  # the name of plain decoding, as of --draft


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyAnswer:
    """The answer to one problem."""

    problem: Problem
    text: str
    tokens: tuple[int, ...]
    is_cut: bool  # it reached --max-tokens
    acceptance: Acceptance

    @property
    def is_right(self) -> bool:
        return last_number(self.text) == self.problem.expected


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyRun:
    """All answers with one drafter."""

    drafter: str
    answers: tuple[AccuracyAnswer, ...]
    duration_s: float

    @property
    def num_right(self) -> int:
        return sum(answer.is_right for answer in self.answers)

    @property
    def accuracy(self) -> float:
        return self.num_right / len(self.answers)

    @property
    def standard_error(self) -> float:
        """How far the accuracy on as many other questions is usually off."""
        return math.sqrt(self.accuracy * (1.0 - self.accuracy) / len(self.answers))

    @property
    def num_tokens(self) -> int:
        return sum(len(answer.tokens) for answer in self.answers)

    @property
    def accept_length(self) -> float:
        """Mean tokens per round."""
        rounds = sum(answer.acceptance.rounds for answer in self.answers)
        return 1.0 + sum(answer.acceptance.kept for answer in self.answers) / max(rounds, 1)

    @property
    def num_drafted(self) -> int:
        return sum(answer.acceptance.drafted for answer in self.answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyReport:
    """Plain decoding, and the same questions with a drafter, if there is one."""

    model: str
    task: AccuracyTask
    temperature: float
    max_tokens: int
    plain: AccuracyRun
    drafted: tuple[AccuracyRun, ...]

    @property
    def runs(self) -> tuple[AccuracyRun, ...]:
        return (self.plain, *self.drafted)

    def differing(self, run: AccuracyRun) -> list[int]:
        """Numbers of the answers that are not, token by token, those of plain decoding."""
        pairs = zip(run.answers, self.plain.answers, strict=True)
        return [
            number
            for number, (own, plain) in enumerate(pairs, start=1)
            if own.tokens != plain.tokens
        ]

    @property
    def is_equal(self) -> bool:
        return not any(self.differing(run) for run in self.drafted)

    @property
    def idle(self) -> list[str]:
        """Drafters that proposed no token: equal answers prove nothing of them."""
        return [run.drafter for run in self.drafted if not run.num_drafted]

    @property
    def has_passed(self) -> bool:
        return self.is_equal and not self.idle


def print_accuracy(report: AccuracyReport) -> None:
    """Print it on stdout."""
    printer, task = ReportPrinter(), report.task
    sampling = f"temperature {report.temperature:g}" if report.temperature else "greedy"
    printer.setting(
        [
            ("model", report.model),
            ("task", f"{task.name}: {len(task.problems)} questions, {len(task.examples)} examples"),
            ("answers", f"{sampling}, at most {report.max_tokens} tokens"),
        ]
    )
    columns = (
        *texts("drafter"),
        *numbers("right", "accuracy", "+-", "cut", "tokens", "seconds"),
        *numbers("drafted", "tokens\n/round", "differ"),
    )
    printer.table(build_table(columns, [_row(report, run) for run in report.runs]))
    printer.note(
        "right: the last number of the answer is that of the task. +-: standard error. "
        "cut: answers that reached --max-tokens. drafted: tokens that the drafter proposed. "
        "differ: answers whose tokens are not those of plain decoding."
    )
    show = printer.line if report.has_passed else printer.warning
    show(_conclusion(report))


def describe_accuracy(report: AccuracyReport) -> dict[str, Any]:
    """Every number and every answer."""
    return {
        "model": report.model,
        "task": report.task.name,
        "examples": len(report.task.examples),
        "temperature": report.temperature,
        "max_tokens": report.max_tokens,
        "is_equal": report.is_equal,
        "runs": [
            {
                "drafter": run.drafter,
                "questions": len(run.answers),
                "right": run.num_right,
                "accuracy": run.accuracy,
                "standard_error": run.standard_error,
                "tokens": run.num_tokens,
                "duration_s": run.duration_s,
                "drafted": run.num_drafted,
                "accept_length": run.accept_length,
                "answers_that_differ": report.differing(run),
                "answers": [_describe_answer(answer) for answer in run.answers],
            }
            for run in report.runs
        ],
    }


def _describe_answer(answer: AccuracyAnswer) -> dict[str, Any]:
    found = last_number(answer.text)
    return {
        "question": answer.problem.question,
        "expected": str(answer.problem.expected),
        "found": "" if found is None else str(found),
        "is_right": answer.is_right,
        "is_cut": answer.is_cut,
        "tokens": len(answer.tokens),
        "text": answer.text,
    }


def _row(report: AccuracyReport, run: AccuracyRun) -> Sequence[str]:
    return [
        run.drafter,
        f"{run.num_right}/{len(run.answers)}",
        f"{run.accuracy:.1%}",
        f"{run.standard_error:.1%}",
        str(sum(answer.is_cut for answer in run.answers)),
        str(run.num_tokens),
        f"{run.duration_s:.1f}",
        str(run.num_drafted),
        f"{run.accept_length:.2f}",
        str(len(report.differing(run))),
    ]


def _conclusion(report: AccuracyReport) -> str:
    if not report.drafted:
        return "nothing drafts for this model, so plain decoding ran alone; name a --draft"
    if report.is_equal and report.idle:
        return (
            f"nothing was drafted with {', '.join(report.idle)}, so nothing is compared; "
            "add --no-adaptive, or ask more questions"
        )
    if report.is_equal:
        return f"all {len(report.plain.answers)} answers are the same with and without drafts"
    numbers_of = {run.drafter: report.differing(run) for run in report.drafted}
    return f"answers that drafts changed: {numbers_of}; this is a bug: run outrider check"
