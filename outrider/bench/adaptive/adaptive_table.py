"""What `outrider bench adaptive` prints and writes."""

from collections.abc import Sequence
from typing import Any

from outrider.bench.adaptive.timed_round import ADAPTIVE, PLAIN, AdaptiveCell, TimedRound
from outrider.bench.never_slower import LEAST_TO_BEST, LEAST_TO_PLAIN, show_ratio
from outrider.bench.report import (
    ReportPrinter,
    SettingLine,
    build_table,
    describe_record,
    numbers,
    texts,
)

_COLUMNS = (
    *texts("text"),
    *numbers("temperature", "rows", "tokens\n/round", "plain\ns", "adaptive\ns"),
    *numbers("first", "lowest", "later", "by\nCPU", "to\nbest"),
    *texts("best"),
)


def print_adaptive(setting: Sequence[SettingLine], cells: Sequence[AdaptiveCell]) -> None:
    """Print a line for every kind of text and number of rows."""
    printer = ReportPrinter()
    printer.setting(setting)
    printer.table(build_table(_COLUMNS, map(_row, cells), is_tight=True))
    num_different = sum(cell.num_different for cell in cells)
    if num_different:
        printer.warning(f"{num_different} answers differ from plain decoding: run outrider check")
    printer.note(
        "first: speed of adaptive drafting over plain decoding in first rounds of engines, and\n"
        "the lowest of them; later: in other rounds; by CPU: in all, by the time of processors;\n"
        "to best: over the fastest of plain decoding and fixed budgets; s: mean of a round;\n"
        "tokens/round: the most that one of the ways emitted\n"
        f"**: below {LEAST_TO_PLAIN} of plain decoding, or {LEAST_TO_BEST} of the best way"
    )


def describe_adaptive(cells: Sequence[AdaptiveCell]) -> dict[str, Any]:
    """Every number, single rounds included."""
    return {"cells": [_describe(cell) for cell in cells]}


def _row(cell: AdaptiveCell) -> tuple[str, ...]:
    return (
        cell.text,
        f"{cell.temperature:g}",
        str(cell.rows),
        f"{cell.most_emitted:.2f}",
        f"{cell.seconds(PLAIN):.2f}",
        f"{cell.seconds(ADAPTIVE):.2f}",
        show_ratio(cell.first, least=LEAST_TO_PLAIN),
        f"{min(cell.ratios(is_first=True)):.3f}",
        "" if cell.later is None else show_ratio(cell.later, least=LEAST_TO_PLAIN),
        f"{cell.cpu:.3f}",
        show_ratio(cell.to_best, least=LEAST_TO_BEST),
        cell.best_way,
    )


def _describe(cell: AdaptiveCell) -> dict[str, Any]:
    names = ("first", "later", "cpu", "to_best", "best_way", "most_emitted", "num_different")
    described = describe_record(cell, *names)
    described["first_ratios"] = cell.ratios(is_first=True)
    described["later_ratios"] = cell.ratios(is_first=False)
    described["rounds"] = [_describe_round(each) for each in cell.rounds]
    return described


def _describe_round(timed: TimedRound) -> dict[str, Any]:
    described = describe_record(timed)
    del described["answers"]  # they are not numbers of the benchmark
    return described
