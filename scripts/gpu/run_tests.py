"""Runs tests/gpu in many processes side by side: compiling kernels is what takes the time.

Run on a GPU: PYTHONPATH=. python scripts/gpu/run_tests.py [--seconds 240] [-k words]
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

PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
BLOCK = 5  # tests of one function that run together: they share fixtures and kernels


def collect(words: str) -> list[str]:
    """The ids of all tests. The project's options ask for few words; -qq would count only."""
    chosen = ["-k", words] if words else []
    command = [*PYTEST, "--collect-only", "-o", "addopts=--import-mode=importlib", "-q"]
    found = subprocess.run([*command, *chosen, "tests/gpu"], capture_output=True, text=True)
    ids = [line for line in found.stdout.splitlines() if "::" in line]
    if not ids:
        raise SystemExit(f"no tests were found:\n{found.stdout[-2000:]}{found.stderr[-2000:]}")
    return ids


def deal(ids: list[str], num: int) -> list[list[str]]:
    """As many shares of about the same size, in the order of the files."""
    blocks = []
    for _, group in groupby(ids, key=lambda one: one.split("[")[0]):
        same = list(group)
        blocks += [same[first : first + BLOCK] for first in range(0, len(same), BLOCK)]
    shares: list[list[str]] = [[] for _ in range(num)]
    for block in sorted(blocks, key=len, reverse=True):
        min(shares, key=len).extend(block)
    place = {one: index for index, one in enumerate(ids)}
    return [sorted(share, key=place.__getitem__) for share in shares if share]


def outcome(text: str) -> Counter[str]:
    """What the letters of a run say; also of one that was cut off."""
    lines = [line.split("[")[0].strip() for line in text.splitlines()]
    letters = "".join(line for line in lines if re.fullmatch(r"[.sFEx]+", line))
    names = {".": "passed", "s": "skipped", "F": "failed", "E": "errors", "x": "expected to fail"}
    return Counter(names[letter] for letter in letters)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("-k", default="", help="only tests that match, as pytest's")
    asked = parser.parse_args()
    begin, ids = time.monotonic(), collect(asked.k)
    logs = Path(tempfile.mkdtemp())
    runs = []
    for index, share in enumerate(deal(ids, asked.processes)):
        log = (logs / f"{index}.txt").open("w")
        command = [*PYTEST, "--tb=short", *share]
        runs.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
    while any(run.poll() is None for run in runs) and time.monotonic() - begin < asked.seconds:
        time.sleep(0.5)
    num_cut = sum(run.poll() is None for run in runs)
    for run in runs:
        run.kill()
        run.wait()
    texts = [log.read_text() for log in sorted(logs.glob("*.txt"))]
    for line in (line for text in texts for line in text.splitlines()):
        if line.startswith(("FAILED", "ERROR", "E  ")):
            print(line[:200])
    total = sum((outcome(text) for text in texts), Counter())
    said = ", ".join(f"{count} {name}" for name, count in total.items())
    left = len(ids) - total.total()
    print(f"{said}; {left} of {len(ids)} not reached, {num_cut} processes cut off", end="")
    print(f" ({time.monotonic() - begin:.0f} s)")
    sys.exit(bool(left or total["failed"] or total["errors"]))


if __name__ == "__main__":
    main()
