"""The campaign: parts in turn, each in as many worker processes as there are jobs."""

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from hostile.case_worker import guard_case
from hostile.parts import NAMES, load_part
from hostile.worker_watch import PartTotals, WatchedWorker

_PROGRESS_S = 5.0


def main(arguments: list[str]) -> int:
    """Run the campaign or one case; 1 if anything failed."""
    args = _parse(arguments)
    if args.case is not None:
        return _run_one(args.only[0], args.case)
    seed = random.SystemRandom().getrandbits(32) if args.seed is None else args.seed
    print(f"hostile campaign, seed {seed}: {', '.join(args.only)}", flush=True)
    share = args.minutes * 60 / len(args.only)
    started = time.monotonic()
    totals = {part: run_part(part, seed=seed, seconds=share, jobs=args.jobs) for part in args.only}
    for part, found in totals.items():
        for case, failure in found.failures:
            print(f"FAILED {part}: {failure}\n  again: {repeat_command(part, case)}")
    print(json.dumps(_summary(seed, totals, time.monotonic() - started)))
    return int(any(found.failures for found in totals.values()))


def run_part(part: str, *, seed: int, seconds: float, jobs: int) -> PartTotals:
    """Totals of one part after that time."""
    totals, lock = PartTotals(), threading.Lock()
    with tempfile.TemporaryDirectory(prefix="hostile-", ignore_cleanup_errors=True) as scratch:
        workers = [
            WatchedWorker(part, campaign=seed, first=index, stride=jobs, scratch=Path(scratch))
            for index in range(jobs)
        ]
        threads = [
            threading.Thread(target=worker.run, args=(seconds, totals, lock)) for worker in workers
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            threads[0].join(_PROGRESS_S) if threads[0].is_alive() else time.sleep(0.2)
            with lock:
                _show_progress(part, totals)
    print(file=sys.stderr)
    return totals


def repeat_command(part: str, case: int) -> str:
    """The command that runs one case again."""
    if case < 0:
        return f"python -m tests.hostile --only {part} --minutes 0.1  # no case had begun"
    return f"python -m tests.hostile --only {part} --case {case}"


def _show_progress(part: str, totals: PartTotals) -> None:
    counts = ", ".join(f"{count} {name}" for name, count in sorted(totals.counts.items()))
    line = f"{part}: {totals.cases} cases, {len(totals.failures)} failures; {counts}"
    print(f"\r{line[:200]:<120}", end="", file=sys.stderr, flush=True)


def _run_one(part: str, case: int) -> int:
    report = guard_case(load_part(part), case)
    print(json.dumps({"part": part, "case": case, "counts": report.counts}))
    for failure in report.failures:
        print(f"FAILED {part}: {failure}")
    return int(bool(report.failures))


def _summary(seed: int, totals: dict[str, PartTotals], seconds: float) -> dict[str, object]:
    parts = {
        part: {"cases": found.cases, "failures": len(found.failures), **found.counts}
        for part, found in totals.items()
    }
    return {"seed": seed, "minutes": round(seconds / 60, 1), "parts": parts}


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="for all parts together")
    parser.add_argument("--seed", type=int, help="of the campaign; a random one if not given")
    parser.add_argument("--only", default=",".join(NAMES), help=f"parts, of {', '.join(NAMES)}")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes at a time")
    parser.add_argument("--case", type=int, help="run this case of one part again, in this process")
    args = parser.parse_args(arguments)
    args.only = args.only.split(",")
    if unknown := set(args.only) - set(NAMES):
        parser.error(f"unknown parts {', '.join(sorted(unknown))}; use {', '.join(NAMES)}")
    if args.case is not None and len(args.only) != 1:
        parser.error("--case needs --only with one part")
    return args
