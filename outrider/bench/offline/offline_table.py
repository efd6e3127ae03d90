"""What `outrider bench offline` prints and writes."""

from collections.abc import Iterator, Sequence
from typing import Any

from outrider.bench.offline.decode_floor import DecodeFloor
from outrider.bench.offline.offline_report import OURS, Decode, EngineResult, OfflineReport
from outrider.bench.report import (
    Column,
    Dim,
    ReportPrinter,
    SettingLine,
    build_table,
    describe_record,
    numbers,
    texts,
    wrapped,
)


def print_offline(report: OfflineReport) -> None:
    """Print it on stdout."""
    printer = ReportPrinter()
    printer.setting(_setting(report))
    printer.table(build_table(_columns(report), _rows(report)))
    if report.is_floor_beaten:
        printer.warning("the floor was beaten: the machine was not quiet, measure again")
    printer.note(
        "floor: bytes of weights and KV at the measured bandwidth, no computation\n"
        "of floor, vs: by tokens/s; vs a peer with equal weights, or else with its first"
    )


def describe_offline(report: OfflineReport) -> dict[str, Any]:
    """Every number of a report in SI units, the single runs included."""
    setting, lengths = report.setting, report.setting.workload.lengths
    return {
        "model": setting.model,
        "machine": describe_record(setting.machine),
        "workload": {
            "origin": setting.workload.origin,
            "prompt_tokens": lengths.prompt,
            "max_tokens": lengths.answer,
            "mean_context": lengths.mean_context,
        },
        "bandwidth_bytes_per_s": setting.bandwidth,
        "floors": [describe_record(each, "step_s", "tokens_per_s") for each in report.floors],
        "results": [_describe_result(report, result) for result in report.results],
        "not_measured": dict(report.missing),
    }


def _describe_result(report: OfflineReport, result: EngineResult) -> dict[str, Any]:
    return {
        "engine": result.engine,
        "version": result.version,
        "dtype": result.dtype,
        "first_token_s": result.first_token_s,
        "first_token_runs_s": list(result.first_token_runs_s),
        "decode": [_describe_decode(report, result, decode) for decode in result.decodes],
    }


def _describe_decode(report: OfflineReport, result: EngineResult, decode: Decode) -> dict[str, Any]:
    peers = report.peers if result.engine == OURS else ()
    return {
        "batch": decode.batch,
        "tokens_per_s": decode.tokens_per_s,
        "step_s": decode.step_s,
        "of_floor": report.of_floor(result, decode.batch),
        "against": {peer: report.against(peer, result, decode.batch) for peer in peers},
        "runs": [describe_record(run) for run in decode.runs],
    }


def _setting(report: OfflineReport) -> Iterator[SettingLine]:
    setting, machine = report.setting, report.setting.machine
    lengths = setting.workload.lengths
    neighbour = "one busy process beside" if machine.has_busy_neighbour else "no neighbour"
    yield "model", setting.model
    yield "machine", f"{machine}, {neighbour}"
    yield (
        "shapes",
        f"{lengths.prompt} prompt tokens ({setting.workload.origin}), "
        f"{lengths.answer} new tokens, greedy, mean context {lengths.mean_context:g}",
    )
    yield "bandwidth", f"{setting.bandwidth / 1e9:.1f} GB/s read, measured"
    for result in report.results:
        first_ms = result.first_token_s * 1e3
        name = f"{result.engine} {result.version} {result.dtype}"
        yield "engine", f"{name}, first token of a single request after {first_ms:.1f} ms"
    for name, why in report.missing.items():
        yield "engine", f"{name}: {why}"


def _columns(report: OfflineReport) -> tuple[Column, ...]:
    return (
        *numbers("batch"),
        *texts("engine"),
        *wrapped("dtype"),
        *numbers("tokens/s", "ms/step", "of floor"),
        *numbers(*(f"vs {peer}" for peer in report.peers)),
    )


def _rows(report: OfflineReport) -> Iterator[Sequence[str] | Dim]:
    for batch in report.batches:
        yield from (_row(report, result, batch) for result in report.results)
        yield from (Dim(_floor_row(floor)) for floor in report.floors if floor.batch == batch)


def _row(report: OfflineReport, result: EngineResult, batch: int) -> list[str]:
    decode, is_ours = result.at(batch), result.engine == OURS
    return [
        str(batch),
        result.engine,
        result.dtype,
        f"{decode.tokens_per_s:.1f}",
        f"{decode.step_s * 1e3:.2f}",
        f"{report.of_floor(result, batch):.0%}",
        *(f"{report.against(peer, result, batch):.2f}x" for peer in report.peers if is_ours),
    ]


def _floor_row(floor: DecodeFloor) -> list[str]:
    return [
        str(floor.batch),
        "floor",
        floor.dtype,
        f"{floor.tokens_per_s:.1f}",
        f"{floor.step_s * 1e3:.2f}",
    ]
