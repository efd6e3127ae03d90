"""Records of `decode`, `iteration` and `prefill`, and their JSON."""

from dataclasses import dataclass
from typing import Any

from benchmarks.steps.breakdown import Breakdown
from benchmarks.steps.cold_start import ColdStart
from benchmarks.steps.device_rates import DeviceRates
from benchmarks.steps.time_decode import StepPoint
from benchmarks.steps.time_prefill import Prefill
from benchmarks.steps.vllm_numbers import NAME
from outrider.bench.machine import Machine
from outrider.bench.report import describe_record

PLAIN = "plain"
_VERIFY = "verify of {} nodes, drafts for nothing"


def verify_name(nodes: int) -> str:
    """The series of steps that only verify trees of this size."""
    return _VERIFY.format(nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Which weights ran, and their bytes."""

    model: str
    is_dummy: bool
    dtype: str
    held_bytes: int
    read_bytes: int  # that a step of one token reads
    cut_layers: int  # of a body that was cut to its layers; 0: it is whole


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSetting:
    """The model, the device and the rates."""

    weights: Weights
    machine: Machine
    card: str  # the device as it calls itself
    executor: str
    is_deterministic: bool
    rates: tuple[DeviceRates, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeries:
    """All cases of one way to decode."""

    name: str  # plain, verify, or what the drafts look like
    points: tuple[StepPoint, ...]
    breakdowns: tuple[Breakdown, ...]
    cold_starts: tuple[ColdStart, ...]  # one with --cold-start, else none


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """The results of one run of `decode` or `iteration`; the main series comes first."""

    setting: StepSetting
    series: tuple[StepSeries, ...]

    def against_plain(self, name: str, point: StepPoint) -> tuple[float, ...]:
        """The time of this step in plain steps of the same case, if both were run."""
        plain = [
            other.steady.step_s
            for series in self.series
            if series.name == PLAIN != name
            for other in series.points
            if other.case == point.case
        ]
        return tuple(point.steady.step_s / step_s for step_s in plain)


def describe_steps(report: StepReport) -> dict[str, Any]:
    """Every number in SI units, the single steps included."""
    return {
        "setting": describe_record(report.setting),
        "series": [
            {
                "name": series.name,
                "points": [
                    _describe_point(point)
                    | {"of_plain_step": list(report.against_plain(series.name, point))}
                    for point in series.points
                ],
                "breakdowns": [_describe_breakdown(each) for each in series.breakdowns],
                "cold_starts": [describe_record(each) for each in series.cold_starts],
            }
            for series in report.series
        ],
    }


def describe_prefill(setting: StepSetting, prefill: Prefill) -> dict[str, Any]:
    """Every number in SI units."""
    return {
        "setting": describe_record(setting),
        "prefill": describe_record(prefill, "prompt_s", "flops_per_s", "of_matrix_rate")
        | {"breakdowns": [_describe_breakdown(each) for each in prefill.breakdowns]},
    }


def _describe_breakdown(breakdown: Breakdown) -> dict[str, Any]:
    return describe_record(breakdown, "gap_s")


def _describe_point(point: StepPoint) -> dict[str, Any]:
    steady = point.steady
    return {
        "rows": point.case.rows,
        "prompt": point.case.prompt,
        "context": steady.context,
        "step_s": steady.step_s,
        "tokens_per_s": steady.tokens_per_s,
        "emitted_per_row": steady.emitted / len(steady.steps_s) / point.case.rows,
        "floors": [
            describe_record(each) | {"ratio": steady.step_s / each.step_s} for each in point.floors
        ],
        "peers": [
            {"name": NAME}
            | describe_record(each)
            | {"speedup": steady.tokens_per_s / each.tokens_per_s}
            for each in point.peers
        ],
        "forward_occupancy": steady.occupancy,
        "host_share": steady.host_share,
        "memory_bytes": point.memory_bytes,
        "steps_s": list(steady.steps_s),
    }
