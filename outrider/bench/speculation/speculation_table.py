"""What `outrider bench speculation` prints and writes."""

from collections.abc import Iterator
from typing import Any

from outrider.bench.accepted_rates import format_rates
from outrider.bench.report import (
    ReportPrinter,
    SettingLine,
    build_table,
    describe_record,
    numbers,
    texts,
    wrapped,
)
from outrider.bench.speculation.speculation_report import (
    PLAIN,
    SpeculationReport,
    SpeculationRun,
    TimeShare,
)

_COLUMNS = (
    *texts("kind", "drafter"),
    *numbers("tokens/s", "vs plain", "tokens\n/round", "draft\nms", "verify\nms", "catch-up\nms"),
    *wrapped("kept"),
)


def print_speculation(report: SpeculationReport) -> None:
    """Print it on stdout."""
    printer = ReportPrinter()
    printer.setting(_setting(report))
    rows = (_row(report, share) for share in _shares(report))
    printer.table(build_table(_COLUMNS, rows, is_tight=True))
    if report.num_different:
        printer.warning(
            f"{report.num_different} answers differ from plain decoding: run outrider check"
        )
    printer.note(
        "draft, verify, catch-up: per round. kept: share of rounds that accepted the first draft,\n"
        "the second, ...; tokens per round = 1 + their sum."
    )


def describe_speculation(report: SpeculationReport) -> dict[str, Any]:
    """Every number in SI units, the single runs included."""
    setting = report.setting
    return {
        "model": setting.model,
        "machine": describe_record(setting.machine),
        "dtype": setting.dtype,
        "temperature": setting.temperature,
        "max_tokens": setting.max_tokens,
        "answers_that_differ": report.num_different,
        "results": [_describe_share(report, share) for share in _shares(report)],
        "runs": [_describe_run(run) for run in report.runs],
    }


def _shares(report: SpeculationReport) -> Iterator[TimeShare]:
    for kind in report.kinds:
        for drafter in report.drafters:
            yield report.share(kind, drafter)


def _describe_share(report: SpeculationReport, share: TimeShare) -> dict[str, Any]:
    rounds = max(share.rounds, 1)
    return {
        "kind": share.kind,
        "drafter": share.drafter,
        "prompts": len(share.runs),
        "tokens_per_s": share.tokens_per_s,
        "speedup": report.speedup(share),
        "accept_length": share.accept_length,
        "kept_rates": list(share.accepted_rates),
        "draft_s": share.cost.draft_s / rounds,
        "verify_s": share.cost.verify_s / rounds,
        "catch_up_s": share.cost.catch_up_s / rounds,
    }


def _describe_run(run: SpeculationRun) -> dict[str, Any]:
    return {
        "kind": run.kind,
        "drafter": run.drafter,
        "tokens": len(run.tokens),
        "rounds": run.rounds,
        "kept_per_position": run.accepted_per_position,
        "cost": describe_record(run.cost),
    }


def _setting(report: SpeculationReport) -> Iterator[SettingLine]:
    setting = report.setting
    sampling = "greedy" if setting.temperature == 0 else f"temperature {setting.temperature:g}"
    yield "model", f"{setting.model}, {setting.dtype}"
    yield "machine", str(setting.machine)
    yield "answers", f"one at a time, {sampling}, at most {setting.max_tokens} tokens"


def _row(report: SpeculationReport, share: TimeShare) -> list[str]:
    rounds, cost = max(share.rounds, 1), share.cost
    seconds = (cost.draft_s, cost.verify_s, cost.catch_up_s)
    is_plain = share.drafter == PLAIN
    return [
        share.kind,
        share.drafter,
        f"{share.tokens_per_s:.1f}",
        "" if is_plain else f"{report.speedup(share):.2f}x",
        "" if is_plain else f"{share.accept_length:.2f}",
        *(f"{each / rounds * 1e3:.1f}" for each in seconds),
        format_rates(share.accepted_rates),
    ]
