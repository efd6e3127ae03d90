"""The table of `never-slower`: printed, as Markdown for the lab log, and as JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.never_slower.never_args import KINDS, LoadPlace, TextLevel
from benchmarks.never_slower.never_engines import ADAPTIVE, PLAIN
from outrider.bench.churn.churn_run import ChurnRun
from outrider.bench.never_slower import LEAST_TO_BEST, LEAST_TO_PLAIN, show_ratio
from outrider.bench.report import (
    ReportPrinter,
    SettingLine,
    build_table,
    describe_record,
    numbers,
    texts,
)

_TITLES = ("R", "load", "text", "plain", "best fixed", "", "adaptive", "to plain", "to best")
_NUMBERS = {"R", "plain", "best fixed", "adaptive", "to plain", "to best"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRun:
    """A load, measured in one way."""

    place: LoadPlace
    text: str  # empty for plain decoding, which does not depend on it
    run: ChurnRun


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverCell:
    """All ways of one load and one text."""

    place: LoadPlace
    text: TextLevel
    plain: ChurnRun
    fixed: ChurnRun  # the fastest of the fixed chains
    adaptive: ChurnRun

    @property
    def to_plain(self) -> float:
        return self.adaptive.tokens_per_s / self.plain.tokens_per_s

    @property
    def to_best(self) -> float:
        return self.adaptive.tokens_per_s / self.fixed.tokens_per_s

    @property
    def num_misses(self) -> int:
        return (self.to_plain < LEAST_TO_PLAIN) + (self.to_best < LEAST_TO_BEST)


def cells_of(runs: Sequence[TimedRun], levels: Sequence[TextLevel]) -> list[NeverCell]:
    """The loads of which every way was measured, by rows and kind; adaptive drafting runs last."""
    cells = [
        _cell(runs, each.place, text)
        for text in levels
        for each in runs
        if each.text == text.name and each.run.way == ADAPTIVE
    ]
    return sorted(cells, key=lambda cell: (cell.place.rows, KINDS.index(cell.place.kind)))


def _cell(runs: Sequence[TimedRun], place: LoadPlace, text: TextLevel) -> NeverCell:
    here = [each for each in runs if each.place == place and each.text in ("", text.name)]
    by_way = {each.run.way: each.run for each in here}
    plain, adaptive = by_way.pop(PLAIN), by_way.pop(ADAPTIVE)
    return NeverCell(
        place=place,
        text=text,
        plain=plain,
        fixed=max(by_way.values(), key=lambda run: run.tokens_per_s),
        adaptive=adaptive,
    )


def print_never(
    setting: Sequence[SettingLine], cells: Sequence[NeverCell], dropped: Sequence[str]
) -> None:
    """Print the table."""
    printer = ReportPrinter()
    printer.setting(setting)
    columns = [
        column for title in _TITLES for column in (numbers if title in _NUMBERS else texts)(title)
    ]
    rows = (tuple(_row(cell)) for cell in cells)
    printer.table(build_table(columns, rows, is_tight=True))
    printer.note(
        "tok/s; to plain, to best: speed of adaptive drafting over plain decoding and over the\n"
        "best fixed chain; churn: from the first step on, prompts included; steady: after prompts"
    )
    for line in _verdict(cells, dropped):
        printer.line(line)


def markdown_of(cells: Sequence[NeverCell], dropped: Sequence[str]) -> str:
    """The same table for the lab log."""
    lines = [_join(_TITLES), _join(["---"] * len(_TITLES))]
    lines += [_join(tuple(_row(cell))) for cell in cells]
    return "\n".join((*lines, "", *_verdict(cells, dropped), ""))


def describe_never(
    runs: Sequence[TimedRun], cells: Sequence[NeverCell], dropped: Sequence[str]
) -> dict[str, Any]:
    """Every number; single steps of adaptive drafting alone, to see how it learns."""
    return {
        "least": {"to_plain": LEAST_TO_PLAIN, "to_best": LEAST_TO_BEST},
        "dropped": list(dropped),
        "cells": [_describe_cell(cell) for cell in cells],
        "runs": [_describe_run(each) for each in runs],
    }


def _describe_cell(cell: NeverCell) -> dict[str, Any]:
    return {
        **describe_record(cell.place),
        "text": describe_record(cell.text),
        "plain": cell.plain.tokens_per_s,
        "fixed": cell.fixed.tokens_per_s,
        "fixed_way": cell.fixed.way,
        "adaptive": cell.adaptive.tokens_per_s,
        "to_plain": cell.to_plain,
        "to_best": cell.to_best,
    }


def _describe_run(timed: TimedRun) -> dict[str, Any]:
    run = timed.run
    described = describe_record(run, "tokens_per_s", "eager_rate")
    described["num_steps"] = len(run.steps)
    if run.way != ADAPTIVE:
        del described["steps"]
    described["drafted_steps"] = sum(step.decode_tokens > run.rows for step in run.steps)
    described["tokens"] = describe_record(run.tokens, "per_round", "accepted_rate")
    return {**describe_record(timed.place), "text": timed.text, **described}


def _row(cell: NeverCell) -> Iterator[str]:
    yield str(cell.place.rows)
    yield cell.place.kind
    yield f"{cell.text.name} {cell.text.chance:g}"
    yield f"{cell.plain.tokens_per_s:,.0f}"
    yield f"{cell.fixed.tokens_per_s:,.0f}"
    yield cell.fixed.way
    yield f"{cell.adaptive.tokens_per_s:,.0f}"
    yield show_ratio(cell.to_plain, least=LEAST_TO_PLAIN)
    yield show_ratio(cell.to_best, least=LEAST_TO_BEST)


def _verdict(cells: Sequence[NeverCell], dropped: Sequence[str]) -> Iterator[str]:
    misses = sum(cell.num_misses for cell in cells)
    yield (
        f"Missed: {misses} of {2 * len(cells)} ratios. Asked are {LEAST_TO_PLAIN} of plain "
        f"decoding and {LEAST_TO_BEST} of the best fixed chain."
    )
    if cells:
        runs = [run for cell in cells for run in (cell.plain, cell.fixed, cell.adaptive)]
        most = max(runs, key=lambda run: run.eager_rate)
        load = f"{most.rows} rows, {most.way}"
        yield f"Eager steps of a load: at most {most.eager_rate:.1%} ({load})."
    if dropped:
        yield f"Not measured, the time was over: {'; '.join(dropped)}."


def _join(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
