"""What `decode`, `iteration` and `prefill` print."""

from collections.abc import Iterator, Sequence

from rich.table import Table

from benchmarks.steps.breakdown import Breakdown, KernelShare
from benchmarks.steps.step_report import StepReport, StepSeries, StepSetting
from benchmarks.steps.time_decode import StepPoint
from benchmarks.steps.time_prefill import Prefill
from benchmarks.steps.vllm_numbers import NOTE
from outrider.bench.report import Dim, ReportPrinter, SettingLine, build_table, numbers, texts

_NAME_WIDTH = 60  # characters of a kernel's name that are shown


def print_steps(report: StepReport) -> None:
    """Print it on stdout."""
    printer = ReportPrinter()
    printer.setting(setting_lines(report.setting))
    for series in report.series:
        _print_series(printer, report, series)
    if any(point.peers for series in report.series for point in series.points):
        printer.note(NOTE)
    printer.note(
        "floor: each matrix read once, or multiplied at the matrix rate if that takes longer; KV "
        "read once,\nin ms at each bandwidth. ctx: cached tokens per row. ms: median of the timed "
        "steps; tok/s: over\nall of them; vs vLLM: by tok/s; x plain: by ms; busy: share of the "
        "time in which a step ran;\nhost: share of it in which the host did not wait for one."
    )


def print_prefill(setting: StepSetting, prefill: Prefill) -> None:
    """Print it on stdout."""
    printer = ReportPrinter()
    printer.setting(setting_lines(setting))
    row = (
        str(prefill.tokens),
        f"{prefill.prompt_s * 1e3:.2f}",
        f"{prefill.flops_per_s / 1e12:.4g}",
        f"{prefill.of_matrix_rate:.1%}",
    )
    columns = numbers("tokens", "ms", "TFLOP/s", "of matrix rate")
    printer.table(build_table(columns, [row], is_tight=True))
    memory_gib = prefill.memory_bytes / 2**30
    printer.note(
        f"first run {prefill.first_run_s * 1e3:.1f} ms; memory {memory_gib:.1f} GiB\n"
        "FLOPs: matrices of every token, causal attention, logits of the last token"
    )
    for breakdown in prefill.breakdowns:
        printer.table(_breakdown(breakdown, "whole prompt"))


def setting_lines(setting: StepSetting) -> Iterator[SettingLine]:
    """Lines about the model, the device and the rates."""
    weights, machine = setting.weights, setting.machine
    origin = "random weights" if weights.is_dummy else "real weights"
    yield "model", f"{weights.model}, {origin}, {weights.dtype}"
    if weights.cut_layers:
        yield "layers", f"{weights.cut_layers} like those of the model, and a small vocabulary"
    yield (
        "bytes",
        f"{weights.read_bytes / 1e9:.3f} GB read per step of one token, of "
        f"{weights.held_bytes / 1e9:.3f} GB held",
    )
    yield "device", f"{setting.card}, torch {machine.torch}, {machine.cpu}"
    kernels = "" if setting.is_deterministic else ", not deterministic"
    yield "executor", f"{setting.executor}{kernels}"
    rates = ", ".join(f"{rate.name} {rate.bandwidth / 1e12:.3g} TB/s" for rate in setting.rates)
    yield "rates", f"{rates}; matrix {setting.rates[-1].matrix / 1e12:.4g} TFLOP/s"


def _print_series(printer: ReportPrinter, report: StepReport, series: StepSeries) -> None:
    printer.title(series.name)
    for each in series.cold_starts:
        printer.line(
            f"cold start: assembled after {each.assembled_s:.2f} s, first token "
            f"{each.first_token_s:.2f} s, second {each.second_token_s:.2f} s"
        )
    printer.table(_points(report, series))
    for breakdown in series.breakdowns:
        printer.table(_breakdown(breakdown, "per step"))


def _points(report: StepReport, series: StepSeries) -> Table:
    first = series.points[0]
    has_peer = any(point.peers for point in series.points)
    has_plain = any(report.against_plain(series.name, point) for point in series.points)
    emits = any(point.steady.emitted > _num_rounds(point) for point in series.points)
    titles = ["rows", "ctx", "ms", "tok/s", *(["tokens\n/round"] if emits else [])]
    titles += [f"floor\n{floor.rates}" for floor in first.floors]
    titles += [f"x floor\n{floor.rates}" for floor in first.floors]
    layers = report.setting.weights.cut_layers
    titles += ["us\n/layer", f"floor\n{first.floors[-1].rates}"] if layers else []
    titles += ["vLLM\nms", "vs\nvLLM"] if has_peer else []
    titles += ["x\nplain"] if has_plain else []
    rows = []
    for point in series.points:
        plain = [f"{ratio:.2f}x" for ratio in report.against_plain(series.name, point)]
        rows.append(
            [
                *_speeds(point, emits=emits),
                *(_of_layer(point, layers) if layers else []),
                *(_peer(point) if has_peer else []),
                *((plain or [""]) if has_plain else []),
                f"{point.steady.occupancy:.1%}",
                f"{point.steady.host_share:.0%}",
                f"{point.memory_bytes / 2**30:.1f}",
            ]
        )
    return build_table(numbers(*titles, "busy", "host", "GiB"), rows, is_tight=True)


def _speeds(point: StepPoint, *, emits: bool) -> list[str]:
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
    """Microseconds of a step and of its floor per layer, for a body that is cut to its layers."""
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


def _breakdown(breakdown: Breakdown, of: str) -> Table:
    span_s = max(breakdown.span_s, 1e-12)
    rows: list[Sequence[str] | Dim] = [
        _share(each, each.name, span_s) for each in breakdown.classes
    ]
    rows.append(("gaps", f"{breakdown.gap_s * 1e6:.1f}", f"{breakdown.gap_s / span_s:.1%}"))
    rows.append(("span", f"{breakdown.span_s * 1e6:.1f}"))
    for share in breakdown.kernels:
        name = share.name if len(share.name) <= _NAME_WIDTH else share.name[:_NAME_WIDTH] + "..."
        rows.append(Dim(_share(share, f"  {name}", span_s)))
    first = f"{breakdown.case.rows} rows, prompt {breakdown.case.prompt}, {of}"
    return build_table((*texts(first), *numbers("us", "of span", "runs")), rows)


def _share(share: KernelShare, name: str, span_s: float) -> tuple[str, ...]:
    time_us = share.step_s * 1e6
    return name, f"{time_us:.1f}", f"{share.step_s / span_s:.1%}", f"{share.runs:.1f}"
