"""Runs two ranks on one GPU, and NCCL with one rank, and compares their tokens with one process.

Run on a GPU: python -m benchmarks.ranks.one_card [--model FOLDER_OR_GGUF] [--seconds 150]
All parts run at the same time, each in a process of its own. Each check prints PASS, FAIL or SKIP.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.ranks.one_card_parts import NCCL, PARTS, prepare_models, run_part

_TIE = 0.01  # nats in float32: two tokens nearer than this may change places
_CHECKS = (
    ("tensor parallelism 2, eager", "smollm2 one", "smollm2 tp2 eager"),
    ("tensor parallelism 2, breakable graphs", "smollm2 one", "smollm2 tp2 captured"),
    ("data parallelism 2 with divided experts, eager", "moe one", "moe dp2 eager"),
    ("data parallelism 2 with divided experts, breakable graphs", "moe one", "moe dp2 captured"),
    ("NCCL of one rank, sums and logits in captured graphs", "smollm2 one", "smollm2 nccl"),
    ("NCCL of one rank, experts in captured graphs", "moe one", "moe nccl"),
)


@dataclass(frozen=True, slots=True)
class PartResult:
    """What the process of a part left behind."""

    report: dict[str, Any]  # empty if it failed
    error: str
    seconds: float


def main() -> int:
    args = _parse()
    if args.part:
        run_part(args.part, folder=args.folder, device=args.device, report=args.report)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        print(prepare_models(folder, args.model), flush=True)
        parts = [part for part in PARTS if part not in NCCL or args.device != "cpu"]
        results = _run_all(parts, folder, args.device, time.monotonic() + args.seconds)
    lines = list(_lines(results))
    for line in lines:
        print(line, flush=True)
    return int(any(line.startswith("FAIL") for line in lines))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="", help="SmolLM2-135M-Instruct: a folder or a GGUF")
    parser.add_argument("--device", default="cuda:0", help="shared by both ranks; cpu: no NCCL")
    parser.add_argument("--seconds", type=float, default=140.0, help="for all parts together")
    parser.add_argument("--part", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def _run_all(
    parts: list[str], folder: Path, device: str, end_s: float
) -> dict[str, PartResult]:  # by part
    """Start all parts, and end those that are late. Their ranks end with them."""
    began_s, running = time.monotonic(), {}
    for part in parts:
        place = folder / part.replace(" ", "-")
        command = [sys.executable, "-m", "benchmarks.ranks.one_card", "--part", part]
        command += ["--folder", str(folder), "--device", device, "--report", f"{place}.json"]
        with Path(f"{place}.log").open("w") as log:
            running[part] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    results: dict[str, PartResult] = {}
    while len(results) < len(running):
        for part in [part for part in running if part not in results]:
            if running[part].poll() is None and time.monotonic() < end_s:
                continue
            is_late = running[part].poll() is None
            running[part].kill()
            running[part].wait()
            place = folder / part.replace(" ", "-")
            results[part] = _result(place, time.monotonic() - began_s, is_late=is_late)
        time.sleep(0.1)
    return results


def _result(place: Path, seconds: float, *, is_late: bool) -> PartResult:
    report, log = Path(f"{place}.json"), Path(f"{place}.log").read_text()
    if report.exists():
        return PartResult(json.loads(report.read_text()), "", seconds)
    reason = f"not ready after {seconds:.0f} s" if is_late else "failed"
    return PartResult({}, f"{reason}: {' | '.join(log.splitlines()[-12:])[-1500:]}", seconds)


def _lines(results: dict[str, PartResult]) -> Iterator[str]:
    for what, one, several in _CHECKS:
        if several not in results:
            yield f"SKIP {what}: needs a GPU"
            continue
        missing = [name for name in (one, several) if not results[name].report]
        if missing:
            yield f"FAIL {what}: {missing[-1]} {results[missing[-1]].error}"
            continue
        report, seconds = results[several].report, results[several].seconds
        problems = _problems(results[one].report, report)
        word = f"FAIL {what}: {'; '.join(problems)}" if problems else f"PASS {what}"
        yield f"{word} ({_facts(results[one].report, report)}, {seconds:.0f} s)"


def _problems(one: dict[str, Any], several: dict[str, Any]) -> list[str]:
    found = []
    if several["answers"] != several["again"]:
        found.append("a second run gave other tokens")
    if several["is_captured"] and several["eager"] * 2 > several["steps"]:
        found.append(f"{several['eager']} of {several['steps']} steps without a captured graph")
    if several["drafted"] == 0:
        found.append("nothing was drafted")
    for index, gap in _gaps(one, several):
        if gap > _TIE:
            found.append(f"answer {index} differs where scores are {gap:.3f} nats apart")
    return found


def _gaps(one: dict[str, Any], several: dict[str, Any]) -> Iterator[tuple[int, float]]:
    """The answers that differ, and how far apart the two tokens are where they first do."""
    answers = zip(one["answers"], several["answers"], one["scores"], strict=True)
    for index, (right, ours, scores) in enumerate(answers):
        differing = [i for i, pair in enumerate(zip(right, ours, strict=False)) if len({*pair}) > 1]
        if differing:
            place = differing[0]
            own = scores[place].get(str(ours[place]), float("-inf"))
            yield index, scores[place][str(right[place])] - own
        elif len(right) != len(ours):
            yield index, float("inf")


def _facts(one: dict[str, Any], several: dict[str, Any]) -> str:
    ties = sum(1 for _ in _gaps(one, several))
    total = len(one["answers"])
    return (
        f"{total - ties} of {total} answers equal, {several['steps']} steps, {several['eager']} "
        f"without a graph, {several['accepted']} of {several['drafted']} drafts accepted"
    )


if __name__ == "__main__":
    sys.exit(main())
