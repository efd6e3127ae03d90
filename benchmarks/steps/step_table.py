"""Reports for people: a few lines about the setting, tables, and lines on what they mean."""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from benchmarks.steps.breakdown import Breakdown
from benchmarks.steps.step_report import StepReport, StepSeries, StepSetting
from benchmarks.steps.time_decode import StepPoint
from benchmarks.steps.time_prefill import Prefill
from benchmarks.steps.vllm_numbers import NOTE
from outrider.bench.offline.offline_table import WIDTH

_NAME_WIDTH = 60  # of a kernel; templates fill a screen


def print_report(report: StepReport) -> None:
    """Print it on stdout."""
    console = open_console(report.setting)
    for series in report.series:
        _print_series(console, report, series)
    if any(point.peers for series in report.series for point in series.points):
        console.print(NOTE, style="dim")
    console.print(
        "floor: each matrix read once, or multiplied at the matrix rate if that takes longer; KV "
        "read once,\nin ms at each bandwidth. ctx: cached tokens per row. ms: median of the timed "
        "steps; tok/s: over\nall of them; vs vLLM: by tok/s; x plain: by ms; busy: share of the "
        "time in which a step ran;\nhost: share of it in which the host did not wait for one.",
        style="dim",
    )


def print_prefill(setting: StepSetting, found: Prefill) -> None:
    """Print it on stdout."""
    console, table = open_console(setting), _table(("tokens", "ms", "TFLOP/s", "of matrix rate"))
    table.add_row(
        str(found.tokens),
        f"{found.prompt_s * 1e3:.2f}",
        f"{found.flops_per_s / 1e12:.4g}",
        f"{found.of_matrix_rate:.1%}",
    )
    console.print(table)
    console.print(
        f"first run {found.first_run_s * 1e3:.1f} ms; memory {_gib(found.memory_bytes)}\n"
        "FLOPs: matrices of every token, causal attention, logits of the last token",
        style="dim",
    )
    for breakdown in found.breakdowns:
        _print_breakdown(console, breakdown, "whole prompt")


def open_console(setting: StepSetting) -> Console:
    """A console on stdout that has said what is measured on what."""
    console = Console(width=WIDTH, highlight=False)
    for line in _heading(setting):
        console.print(line, markup=False, soft_wrap=True)
    return console


def _heading(setting: StepSetting) -> Iterator[str]:
    weights, machine = setting.weights, setting.machine
    origin = "random weights" if weights.is_dummy else "real weights"
    yield f"model      {weights.model}, {origin}, {weights.dtype}"
    if weights.cut_layers:
        yield f"layers     {weights.cut_layers} like those of the model, and a small vocabulary"
    yield (
        f"bytes      {weights.read_bytes / 1e9:.3f} GB read per step of one token, of "
        f"{weights.held_bytes / 1e9:.3f} GB held"
    )
    yield f"device     {setting.card}, torch {machine.torch}, {machine.cpu}"
    law = ", deterministic" if setting.is_deterministic else ""
    yield f"executor   {setting.executor}{law}"
    rates = ", ".join(f"{rate.name} {rate.bandwidth / 1e12:.3g} TB/s" for rate in setting.rates)
    yield f"rates      {rates}; matrix {setting.rates[-1].matrix / 1e12:.4g} TFLOP/s"


def _print_series(console: Console, report: StepReport, series: StepSeries) -> None:
    console.print(f"\n{series.name}", style="bold", markup=False)
    for each in series.cold_starts:
        console.print(
            f"cold start: assembled after {each.assembled_s:.2f} s, first token "
            f"{each.first_token_s:.2f} s, second {each.second_token_s:.2f} s"
        )
    console.print(_points(report, series))
    for breakdown in series.breakdowns:
        _print_breakdown(console, breakdown)


def _points(report: StepReport, series: StepSeries) -> Table:
    first = series.points[0]
    has_peer = any(point.peers for point in series.points)
    has_plain = any(report.against_plain(series.name, point) for point in series.points)
    emits = any(point.steady.emitted > _num_rounds(point) for point in series.points)
    headings = ["rows", "ctx", "ms", "tok/s", *(["tokens\n/round"] if emits else [])]
    headings += [f"floor\n{floor.rates}" for floor in first.floors]
    headings += [f"x floor\n{floor.rates}" for floor in first.floors]
    layers = report.setting.weights.cut_layers
    headings += ["us\n/layer", f"floor\n{first.floors[-1].rates}"] if layers else []
    headings += ["vLLM\nms", "vs\nvLLM"] if has_peer else []
    headings += ["x\nplain"] if has_plain else []
    table = _table((*headings, "busy", "host", "GiB"))
    for point in series.points:
        plain = [f"{ratio:.2f}x" for ratio in report.against_plain(series.name, point)]
        table.add_row(
            *_paces(point, emits=emits),
            *(_of_layer(point, layers) if layers else []),
            *(_peer(point) if has_peer else []),
            *((plain or [""]) if has_plain else []),
            f"{point.steady.occupancy:.1%}",
            f"{point.steady.host_share:.0%}",
            f"{point.memory_bytes / 2**30:.1f}",
        )
    return table


def _paces(point: StepPoint, *, emits: bool) -> list[str]:
    steady = point.steady
    emitted = steady.emitted / _num_rounds(point)
    return [
        str(point.case.rows),
        f"{steady.context:.0f}",
        f"{steady.step_s * 1e3:.3f}",
        f"{steady.tokens_per_s:.0f}",
        *([f"{emitted:.2f}"] if emits else []),
        *(f"{floor.step_s * 1e3:.3f}" for floor in point.floors),
        *(f"{steady.step_s / floor.step_s:.3f}x" for floor in point.floors),
    ]


def _of_layer(point: StepPoint, layers: int) -> list[str]:
    """A step is its layers where little else is left of the model."""
    times = point.steady.step_s, point.floors[-1].step_s
    return [f"{time_s * 1e6 / layers:.1f}" for time_s in times]


def _num_rounds(point: StepPoint) -> int:
    return len(point.steady.steps_s) * point.case.rows


def _peer(point: StepPoint) -> list[str]:
    shown = [
        (f"{peer.step_s * 1e3:.2f}", f"{point.steady.tokens_per_s / peer.tokens_per_s:.2f}x")
        for peer in point.peers
    ]
    return list(shown[0]) if shown else ["", ""]


def _print_breakdown(console: Console, found: Breakdown, of: str = "per step") -> None:
    table = Table(box=None, header_style="bold")
    table.add_column(f"{found.case.rows} rows, prompt {found.case.prompt}, {of}", no_wrap=True)
    for heading in ("us", "of span", "runs"):
        table.add_column(heading, justify="right")
    span = max(found.span_s, 1e-12)
    for share in found.classes:
        table.add_row(
            share.name,
            f"{share.step_s * 1e6:.1f}",
            f"{share.step_s / span:.1%}",
            f"{share.runs:.1f}",
        )
    table.add_row("gaps", f"{found.gap_s * 1e6:.1f}", f"{found.gap_s / span:.1%}")
    table.add_row("span", f"{found.span_s * 1e6:.1f}")
    table.add_section()
    for share in found.kernels:
        name = share.name if len(share.name) <= _NAME_WIDTH else share.name[:_NAME_WIDTH] + "..."
        table.add_row(
            f"  {name}",
            f"{share.step_s * 1e6:.1f}",
            f"{share.step_s / span:.1%}",
            f"{share.runs:.1f}",
            style="dim",
        )
    console.print(table)


def _table(headings: tuple[str, ...]) -> Table:
    table = Table(box=None, header_style="bold", collapse_padding=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
