"""Runs tests/gpu in many processes at once, because most of the time is spent compiling kernels.

Run on a GPU: python -m benchmarks.run_gpu_tests [--seconds 240] [-k words] [--rest FILE]
Tests that failed or were not reached are written to --rest. If the file exists, only its tests run.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import groupby
from pathlib import Path

OPTIONS = ["-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
PYTEST = [sys.executable, "-m", "pytest", *OPTIONS]
BLOCK = 5  # tests of one function that run together: they share fixtures and kernels


def collect(words: str) -> list[str]:
    """The ids of all tests that match."""
    command = [*PYTEST, "--collect-only", "-q", *(["-k", words] if words else []), "tests/gpu"]
    found = subprocess.run(command, capture_output=True, text=True)
    ids = [line for line in found.stdout.splitlines() if "::" in line]
    if not ids:
        raise SystemExit(f"no tests were found:\n{found.stdout[-2000:]}{found.stderr[-2000:]}")
    return ids


def deal(ids: list[str], num: int) -> list[list[str]]:
    """That many shares of about the same size, in the order of the files."""
    blocks = []
    for _, group in groupby(ids, key=lambda one: one.split("[")[0]):
        same = list(group)
        blocks += [same[first : first + BLOCK] for first in range(0, len(same), BLOCK)]
    shares: list[list[str]] = [[] for _ in range(num)]
    for block in sorted(blocks, key=len, reverse=True):
        min(shares, key=len).extend(block)
    place = {one: index for index, one in enumerate(ids)}
    return [sorted(share, key=place.__getitem__) for share in shares if share]


def outcomes(text: str) -> dict[str, str]:
    """The outcome of each test of a run that ended or was cut off."""
    results = re.findall(
        r"^(\S+::.+?) (PASSED|SKIPPED|FAILED|ERROR|XFAIL|XPASS)\b", text, re.MULTILINE
    )
    return {name: word.lower() for name, word in results}


def run(shares: list[list[str]], logs: Path, end: float) -> int:
    """Run one process per share until all end or time is up; returns how many were cut off."""
    runs = []
    for index, share in enumerate(shares):
        log = (logs / f"{index}.txt").open("w")
        command = [*PYTEST, "-v", "--tb=short", *share]
        runs.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
    while any(one.poll() is None for one in runs) and time.monotonic() < end:
        time.sleep(0.5)
    num_cut = sum(one.poll() is None for one in runs)
    for index, one in enumerate(runs):
        if one.poll() not in (None, 0, 1):  # it ended without a summary
            print(f"process {index} ended with {one.poll()}: see {logs / f'{index}.txt'}")
        one.kill()
        one.wait()
    return num_cut


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("-k", default="", help="only tests that match, as pytest's")
    parser.add_argument("--rest", type=Path, help="the tests to run again: read, then written")
    return parser.parse_args()


def main() -> None:
    begin, args = time.monotonic(), parse()
    wanted = args.rest.read_text().splitlines() if args.rest and args.rest.exists() else []
    ids, logs = collect(args.k), Path(tempfile.mkdtemp())
    ids = [name for name in ids if name in wanted] or ids
    num_cut = run(deal(ids, args.processes), logs, begin + args.seconds)
    texts = [log.read_text() for log in sorted(logs.glob("*.txt"))]
    for line in (line for text in texts for line in text.splitlines()):
        if line.startswith(("FAILED", "ERROR", "E  ")):
            print(line[:200])
    outcome_of = {name: word for text in texts for name, word in outcomes(text).items()}
    left = [name for name in ids if name not in outcome_of]
    if args.rest:
        again = [name for name in ids if outcome_of.get(name, "failed") in ("failed", "error")]
        args.rest.write_text("\n".join(again))
    total = Counter(outcome_of.values())
    results = ", ".join(f"{count} {word}" for word, count in total.items())
    print(f"{results}; {len(left)} of {len(ids)} not reached, {num_cut} processes cut off", end="")
    print(f" ({time.monotonic() - begin:.0f} s; logs in {logs})")
    sys.exit(bool(left or total["failed"] or total["error"]))


if __name__ == "__main__":
    main()
