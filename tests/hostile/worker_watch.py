"""Keeps a worker process of the campaign running, and notices when it dies or hangs."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from hostile.parts import PATIENCE_S

_TESTS = Path(__file__).parents[1]
_END_S = 60.0  # a server that the worker started has this long to end
_WORKER = (
    "import sys; from hostile.case_worker import run_cases; part, *numbers, seconds = sys.argv[1:];"
    "campaign, first, stride = map(int, numbers);"
    "run_cases(part, campaign=campaign, first=first, stride=stride, seconds=float(seconds))"
)


@dataclass
class PartTotals:
    """What all workers of one part have done."""

    cases: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)  # seed of the case, what


class WatchedWorker:
    """Owns one worker process. A process that dies or hangs is replaced at the next case."""

    def __init__(self, part: str, *, campaign: int, first: int, stride: int, scratch: Path) -> None:
        self._part, self._campaign, self._stride = part, campaign, stride
        self._scratch = scratch
        self._index = first
        self._seed = -1  # of the case that runs; -1: none
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def run(self, seconds: float, totals: PartTotals, lock: threading.Lock) -> None:
        """Work until the time is up; the case in flight is awaited."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            failure = self._run_process(left, totals, lock)
            if failure:
                with lock:
                    totals.failures.append((self._seed, failure))
                self._index += self._stride
            if failure and self._seed < 0:
                return  # it could not even begin

    def _run_process(self, seconds: float, totals: PartTotals, lock: threading.Lock) -> str:
        """Run one process to its end; returns why it did not end well, or nothing."""
        numbers = (self._campaign, self._index, self._stride, seconds)
        command = [sys.executable, "-c", _WORKER, self._part, *map(str, numbers)]
        log = self._scratch / f"worker-{self._index}.log"
        paths = [str(_TESTS), str(_TESTS.parent), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "TMPDIR": str(self._scratch),
            "OUTRIDER_CACHE": str(self._scratch / "cache"),
        }
        self._seed = -1
        with log.open("wb") as errors:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                start_new_session=True,
            )
        threading.Thread(target=self._pump, args=(process.stdout,), daemon=True).start()
        try:
            failure = self._follow(totals, lock)
            code = process.wait(_END_S) if not failure else -1
        except subprocess.TimeoutExpired:
            failure, code = "the worker does not end after its last case", -1
        finally:
            _end_group(process)
        if failure or not code:
            return failure
        tail = log.read_text(errors="replace")[-1500:]
        return f"the worker died with {code}; its log ends with: {tail}"

    def _pump(self, stdout) -> None:
        for line in stdout:
            self._lines.put(line)
        self._lines.put("")

    def _follow(self, totals: PartTotals, lock: threading.Lock) -> str:
        """Take over what the process reports; returns a failure if it stops reporting."""
        while True:
            try:
                line = self._lines.get(timeout=PATIENCE_S[self._part])
            except queue.Empty:
                return f"no sign of life for {PATIENCE_S[self._part]:.0f} s"
            if not line:
                return ""
            self._note(json.loads(line), totals, lock)

    def _note(self, record: dict, totals: PartTotals, lock: threading.Lock) -> None:
        if "begin" in record:
            self._seed, self._index = record["begin"], record["index"]
            return
        self._index += self._stride
        with lock:
            totals.cases += 1
            totals.counts.update(record["counts"])
            totals.failures += [(record["end"], failure) for failure in record["failures"]]


def _end_group(process: subprocess.Popen[str]) -> None:
    """End a worker and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
