"""Reports for machines: plain values that JSON can hold."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from outrider.bench.offline.offline_report import OURS, Decode, EngineResult, OfflineReport
from outrider.bench.perplexity import Perplexity


def describe(report: OfflineReport) -> dict[str, Any]:
    """Every number of a report in SI units, the single runs included."""
    setting, lengths = report.setting, report.setting.workload.lengths
    return {
        "model": setting.model,
        "machine": asdict(setting.machine),
        "workload": {
            "origin": setting.workload.origin,
            "prompt_tokens": lengths.prompt,
            "max_tokens": lengths.answer,
            "mean_context": lengths.mean_context,
        },
        "bandwidth_bytes_per_s": setting.bandwidth,
        "floors": [
            asdict(floor) | {"step_s": floor.step_s, "tokens_per_s": floor.tokens_per_s}
            for floor in report.floors
        ],
        "results": [_describe_result(report, result) for result in report.results],
        "not_installed": list(report.missing),
    }


def describe_perplexities(
    model: str, num_texts: int, found: Sequence[Perplexity]
) -> dict[str, Any]:
    """Every number, with the change against the first type of weights."""
    return {
        "model": model,
        "num_texts": num_texts,
        "results": [asdict(each) | {"change": each.change_from(found[0])} for each in found],
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
        "runs": [asdict(run) for run in decode.runs],
    }
