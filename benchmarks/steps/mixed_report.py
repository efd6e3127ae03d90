"""What `mixed` prints line by line, and its JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.steps.step_report import StepSetting
from benchmarks.steps.time_decode import StepFloor
from benchmarks.steps.time_mixed import MixedPoint
from outrider.bench.report import describe_record

AIM = 1.10  # of a decode step with as many query tokens
_WIDTHS = (6, 6, 10, 8, 10, 10, 8, 9, 9, 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedLine:
    """A case with its floors."""

    way: str
    point: MixedPoint
    floors: tuple[StepFloor, ...]  # of the mixed step, the strictest last


def heading() -> str:
    """The titles of the columns."""
    return _joined(
        *("rows", "nodes", "prompts", "tokens", "decode ms", "mixed ms", "ratio", "floor ms"),
        *("x floor", "eager"),
    )


def line_of(line: MixedLine) -> str:
    """The numbers of one case."""
    point, floor = line.point, line.floors[-1]
    case, mixed = point.case, point.mixed
    return _joined(
        str(case.rows),
        str(case.nodes),
        f"{case.prompts} x {case.prompt}",
        str(case.tokens),
        f"{point.alone.step_s * 1e3:.3f}",
        f"{mixed.step_s * 1e3:.3f}",
        f"{point.ratio:.3f}x",
        f"{floor.step_s * 1e3:.3f}",
        f"{mixed.step_s / floor.step_s:.2f}x",
        str(mixed.num_eager),
    )


def summary_of(lines: Sequence[MixedLine]) -> str:
    """How many cases reach the aim, and which one is worst."""
    worst = max(lines, key=lambda line: line.point.ratio)
    num_good = sum(line.point.ratio <= AIM for line in lines)
    case, ratio = worst.point.case, worst.point.ratio
    return (
        f"{num_good} of {len(lines)} cases take at most {AIM:.2f}x of a decode step; the worst is "
        f"{ratio:.3f}x: {case.rows} rows of {case.nodes}, {case.prompts} x {case.prompt}"
    )


def describe_mixed(setting: StepSetting, lines: Sequence[MixedLine]) -> dict[str, Any]:
    """Every number in SI units."""
    return {
        "setting": describe_record(setting),
        "aim": AIM,
        "lines": [
            {"way": line.way, "tokens": line.point.case.tokens, "ratio": line.point.ratio}
            | describe_record(line.point)
            | {"floors": [describe_record(each) for each in line.floors]}
            for line in lines
        ],
    }


def _joined(*cells: str) -> str:
    return "".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True))
