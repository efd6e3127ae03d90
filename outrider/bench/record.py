"""A report for machines: one JSON file that is there completely or not at all."""

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from outrider.bench.report import OURS, Decode, EngineResult, OfflineReport
from outrider.errors import ConfigError


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


def check_target(path: Path) -> None:
    """Refuse a file that could not be written, before minutes are spent on its content."""
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(f"cannot write {path}; give --json a file in a folder you may write to")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace the file at once."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as folder:
        partial = Path(folder) / path.name
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        os.replace(partial, path)


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
