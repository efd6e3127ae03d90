"""The tables of a load, and its numbers for the JSON file."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from outrider.bench.churn.churn_run import ChurnRun, ChurnStep, PeerRun
from outrider.bench.report import (
    ReportPrinter,
    SettingLine,
    build_table,
    describe_record,
    numbers,
    texts,
    wrapped,
)

_RUNS = (
    *texts("way"),
    *numbers("rows", "tok/s", "to plain", "tokens/round", "accepted"),
    *numbers("eager steps", "device busy", "start s"),
)
_KINDS = (
    *wrapped("way"),
    *wrapped("steps"),
    *numbers("rows", "share of time", "count", "eager", "tokens", "ms", "us/token", "submit ms"),
)


def print_churn(
    setting: Sequence[SettingLine], runs: Sequence[ChurnRun], peers: Sequence[PeerRun] = ()
) -> None:
    """Print the speed of every way beside plain decoding, and which steps the time went to."""
    printer = ReportPrinter()
    printer.setting(setting)
    plain = plain_speeds(runs)
    rows = [_run_row(run, plain) for run in runs] + [_peer_row(each, plain) for each in peers]
    printer.table(build_table(_RUNS, rows))
    printer.table(build_table(_KINDS, (row for run in runs for row in _kind_rows(run))))
    for each in peers:
        if each.error:
            printer.warning(f"{peer_name(each)}, {each.rows} rows: {each.error}")
    printer.note(
        "tok/s: over everything, prompts included; accepted: share of the drafts\n"
        "ms: median on the device; tokens: mean query tokens of a step, without padding"
    )


def describe_churn(runs: Sequence[ChurnRun], peers: Sequence[PeerRun] = ()) -> dict[str, Any]:
    """Every number, single steps included."""
    plain = plain_speeds(runs)
    return {
        "runs": [_describe_run(run, plain) for run in runs],
        "peers": [
            describe_record(each) | {"to_plain": _ratio(each.tokens_per_s, plain.get(each.rows))}
            for each in peers
        ],
    }


def plain_speeds(runs: Sequence[ChurnRun]) -> dict[int, float]:
    """Tokens per second of our plain decoding, by rows."""
    return {run.rows: run.tokens_per_s for run in runs if run.way == "plain"}


def peer_name(run: PeerRun) -> str:
    """The engine and its way."""
    return f"{run.engine} {run.way}"


def _describe_run(run: ChurnRun, plain: dict[int, float]) -> dict[str, Any]:
    described = describe_record(run, "tokens_per_s", "eager_rate")
    described["tokens"] = describe_record(run.tokens, "per_round", "accepted_rate")
    described["to_plain"] = _ratio(run.tokens_per_s, plain.get(run.rows))
    described["kinds"] = {
        kind: {
            "steps": len(steps),
            "share_of_time": sum(step.busy_s for step in steps) / run.time.seconds,
        }
        for kind, steps in run.by_kind().items()
    }
    return described


def _ratio(speed: float, plain: float | None) -> float | None:
    return speed / plain if plain and speed else None


def _show_ratio(speed: float, plain: float | None) -> str:
    ratio = _ratio(speed, plain)
    return f"{ratio:.2f}x" if ratio else ""


def _run_row(run: ChurnRun, plain: dict[int, float]) -> tuple[str, ...]:
    tokens = run.tokens
    return (
        run.way,
        str(run.rows),
        f"{run.tokens_per_s:,.0f}",
        _show_ratio(run.tokens_per_s, plain.get(run.rows)),
        f"{tokens.per_round:.2f}",
        f"{tokens.accepted_rate:.0%}" if tokens.drafted else "",
        f"{run.eager_rate:.1%}",
        f"{run.time.occupancy:.1%}",
        f"{run.time.start_s:.1f}",
    )


def _peer_row(run: PeerRun, plain: dict[int, float]) -> tuple[str, ...]:
    speed = "failed" if run.error else f"{run.tokens_per_s:,.0f}"
    return peer_name(run), str(run.rows), speed, _show_ratio(run.tokens_per_s, plain.get(run.rows))


def _kind_rows(run: ChurnRun) -> Iterator[tuple[str, ...]]:
    for kind, steps in run.by_kind().items():
        yield run.way, kind, str(run.rows), *_kind_cells(steps, run.time.seconds)


def _kind_cells(steps: Sequence[ChurnStep], seconds: float) -> Iterator[str]:
    busy_s = [step.busy_s for step in steps]
    tokens = statistics.mean(step.decode_tokens + step.prompt_tokens for step in steps)
    yield f"{sum(busy_s) / seconds:.1%}"
    yield str(len(steps))
    yield str(sum(step.is_eager for step in steps))
    yield f"{tokens:.0f}"
    yield f"{statistics.median(busy_s) * 1e3:.2f}"
    yield f"{sum(busy_s) / tokens / len(steps) * 1e6:.1f}"
    yield f"{statistics.median(step.submit_s for step in steps) * 1e3:.2f}"
