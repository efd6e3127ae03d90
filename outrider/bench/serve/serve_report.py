"""The results of `outrider bench serve`, printed and written."""

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
from rich.table import Table

import outrider
from outrider.bench.report import (
    Column,
    ReportPrinter,
    SettingLine,
    build_table,
    describe_record,
    wrapped,
)
from outrider.bench.serve.client_lag import MAX_CPU_SHARE, ClientLoad
from outrider.bench.serve.load_summary import Spread, Summary, course_of, is_good
from outrider.bench.serve.request_outcome import ServerAnswer
from outrider.bench.serve.serve_args import LoadArgs
from outrider.bench.serve.server_acceptance import ServerAcceptance

NUM_BINS = 60  # of the course of a run
_LABEL_WIDTH = 12
_COLUMNS = (
    *wrapped("ms"),
    *(Column(title=title, min_width=9) for title in ("mean", "p50", "p90", "p95", "p99", "max")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedAcceptance:
    """The server's counts of accepted drafts, and where they were reported."""

    acceptances: tuple[ServerAcceptance, ...]  # one, or none where nothing was reported
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """The results of one run."""

    args: LoadArgs
    model: str
    summary: Summary
    reported: ReportedAcceptance
    client: ClientLoad


def client_name() -> str:
    return (
        f"outrider {outrider.__version__}, Python {platform.python_version()}, "
        f"aiohttp {aiohttp.__version__}, {platform.system()} {platform.machine()}"
    )


def print_load(report: LoadReport) -> None:
    """Print it on stdout."""
    printer = ReportPrinter()
    printer.setting(_setting(report), label_width=_LABEL_WIDTH)
    printer.line()
    printer.setting(_totals(report), label_width=_LABEL_WIDTH)
    for text in _warnings(report):
        printer.warning(f"{'warning':<{_LABEL_WIDTH}}{text}")
    if not report.summary.answers:
        return
    printer.table(_table(report.summary))
    printer.note(
        "TTFT: sent to first text. TPOT: a request's mean per token after the first. ITL: gap "
        "between chunks.\nlatency: sent to last text. goodput: of all that ended, the failed too."
    )


def _setting(report: LoadReport) -> Iterator[SettingLine]:
    args, questions = report.args, report.args.questions
    fields = ", ".join(f"{name} {value}" for name, value in questions.fields.items())
    yield "server", f"{args.endpoint.url}, model {report.model}"
    yield "load", f"{questions.num} requests, {args.pattern}; {fields}"
    repeated = "each once"
    if questions.num > len(questions.prompts):
        repeated = "repeated: a prefix cache will know them"
    yield "prompts", f"{questions.origin}: {len(questions.prompts)}, {repeated}"
    yield "client", client_name()
    lag_ms = report.client.lag.p99 * 1e3
    yield "", f"{report.client.cpu_share:.0%} of a core, event loop late by {lag_ms:.1f} ms (p99)"


def _totals(report: LoadReport) -> Iterator[SettingLine]:
    summary = report.summary
    num_answers, slo = len(summary.answers), summary.slo
    unfinished = f", {summary.num_unfinished} cut short" if summary.num_unfinished else ""
    yield (
        "requests",
        f"{num_answers} answered, {len(summary.failures)} failed{unfinished} in "
        f"{summary.duration_s:.2f} s: {summary.per_s(num_answers):.2f} requests/s",
    )
    for kind, failures in summary.kinds.items():
        yield "", f"{len(failures)} x {kind}: {failures[0].message}"
    yield "tokens", _tokens_line(summary)
    yield (
        "goodput",
        f"{summary.good_rate:.1%}, {summary.per_s(summary.num_good):.2f} requests/s, "
        f"within TTFT {slo.ttft_s * 1e3:g} ms and TPOT {slo.tpot_s * 1e3:g} ms",
    )
    yield "running", f"{summary.mean_running:.1f} on average, {summary.max_running} at most"
    for acceptance in report.reported.acceptances:
        rates = " ".join(f"{rate:.0%}" for rate in acceptance.accepted_rates)
        by_position = f", by position {rates}" if rates else ""
        yield (
            "acceptance",
            f"{acceptance.accept_length:.2f} tokens/round, {acceptance.accept_rate:.1%} of drafts "
            f"kept{by_position} ({report.reported.source})",
        )


def _tokens_line(summary: Summary) -> str:
    out = f"{summary.output_tokens} out, {summary.per_s(summary.output_tokens):.1f} tok/s"
    if summary.num_counted_by_server == len(summary.answers):
        total = summary.per_s(summary.output_tokens + summary.prompt_tokens)
        return (
            f"{out}; {total:.1f} tok/s with prompts; by the server's usage, "
            f"{summary.tokens_per_chunk:.2f} a chunk"
        )
    return (
        f"{out}; {len(summary.answers) - summary.num_counted_by_server} answers came without "
        "usage: their chunks were counted"
    )


def _warnings(report: LoadReport) -> Iterator[str]:
    client = report.client
    if not client.is_bottleneck:
        return
    what, fix = "had to wait for the processor", "give it a core of its own"
    if client.cpu_share > MAX_CPU_SHARE:
        what, fix = "was the bottleneck", "lower the load or split it over several clients"
    yield (
        f"the client {what} ({client.cpu_share:.0%} of a core, event loop late by "
        f"{client.lag.p99 * 1e3:.1f} ms): times hold its delays; {fix}"
    )


def _table(summary: Summary) -> Table:
    spreads = {
        "TTFT": summary.ttft,
        "TPOT": summary.tpot,
        "ITL": summary.itl,
        "latency": summary.latency,
    }
    rows = [
        (name, *(f"{value * 1e3:.2f}" for value in _values(spread)))
        for name, spread in spreads.items()
    ]
    return build_table(_COLUMNS, rows)


def _values(spread: Spread) -> tuple[float, ...]:
    return (spread.mean, spread.p50, spread.p90, spread.p95, spread.p99, spread.max)


def describe_load(report: LoadReport) -> dict[str, Any]:
    """Every number in SI units, every request included; not the API key."""
    args, questions = report.args, report.args.questions
    return {
        "server": {"url": args.endpoint.url, "model": report.model},
        "load": {
            "pattern": str(args.pattern),
            **describe_record(args.pattern),
            "num": questions.num,
            "warm_up": args.num_warm_up,
            "prompts": questions.origin,
            "num_prompts": len(questions.prompts),
            "fields": questions.fields,
        },
        "client": {"name": client_name(), **describe_record(report.client, "is_bottleneck")},
        "summary": _describe_summary(report.summary),
        "acceptance": [
            {
                "source": report.reported.source,
                "accept_length": each.accept_length,
                "accept_rate": each.accept_rate,
                "kept_rates": each.accepted_rates,
                **_describe_acceptance(each),
            }
            for each in report.reported.acceptances
        ],
        "over_time": describe_record(course_of(report.summary, num_bins=NUM_BINS)),
        "requests": [_describe_answer(each, report.summary) for each in report.summary.answers],
        "failures": [describe_record(each) for each in report.summary.failures],
    }


def _describe_summary(summary: Summary) -> dict[str, Any]:
    return {
        "duration_s": summary.duration_s,
        "answered": len(summary.answers),
        "failed": {kind: len(failures) for kind, failures in summary.kinds.items()},
        "cut_short": summary.num_unfinished,
        "requests_per_s": summary.per_s(len(summary.answers)),
        "output_tokens": summary.output_tokens,
        "prompt_tokens": summary.prompt_tokens,
        "answers_counted_by_server": summary.num_counted_by_server,
        "tokens_per_chunk": summary.tokens_per_chunk,
        "output_tokens_per_s": summary.per_s(summary.output_tokens),
        "total_tokens_per_s": summary.per_s(summary.output_tokens + summary.prompt_tokens),
        "slo": describe_record(summary.slo),
        "good_rate": summary.good_rate,
        "good_per_s": summary.per_s(summary.num_good),
        "mean_running": summary.mean_running,
        "max_running": summary.max_running,
        "ttft_s": describe_record(summary.ttft),
        "tpot_s": describe_record(summary.tpot),
        "itl_s": describe_record(summary.itl),
        "latency_s": describe_record(summary.latency),
    }


def _describe_acceptance(acceptance: ServerAcceptance) -> dict[str, Any]:
    return {
        "rounds": acceptance.rounds,
        "drafted": acceptance.drafted,
        "kept": acceptance.accepted,
        "kept_per_position": acceptance.accepted_per_position,
    }


def _describe_answer(answer: ServerAnswer, summary: Summary) -> dict[str, Any]:
    timeline = answer.timeline
    return {
        "index": answer.index,
        "sent_s": timeline.sent_s - summary.start_s,
        "ttft_s": timeline.ttft_s,
        "tpot_s": list(answer.tpots_s),
        "latency_s": timeline.latency_s,
        "itl_s": list(timeline.itls_s),
        "is_good": is_good(answer, summary.slo),
        "tokens": describe_record(answer.tokens),
        "acceptance": [_describe_acceptance(each) for each in answer.acceptances],
    }
