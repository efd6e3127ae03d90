"""Runs loads on a peer in a process of its own; a peer that fails is a result, too."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from outrider.bench.peers.churn_peer import ChurnTask

_MOST_S = 3600.0  # a peer that takes longer hangs


def run_churn_peer(task: ChurnTask) -> Iterator[float]:
    """Tokens per second of every load. Raises RuntimeError with the peer's last words.

    All loads have run when the first speed comes.
    """
    with tempfile.TemporaryDirectory(prefix="outrider-churn-") as name:
        folder = Path(name)
        task_path, result_path, log_path = (folder / each for each in ("task", "result", "log"))
        task_path.write_text(json.dumps(asdict(task)), encoding="utf-8")
        code = _run_child([str(task_path), str(result_path)], log_path)
        speeds = result_path.read_text(encoding="utf-8").split() if result_path.is_file() else []
        failure = f"ended with {code}: {_last_line(log_path)}"
    yield from map(float, speeds)
    if len(speeds) < len(task.loads):
        raise RuntimeError(failure)


def _run_child(arguments: list[str], log_path: Path) -> int:
    """The exit code of the child, whose own children end with it."""
    command = [sys.executable, "-m", "outrider.bench.peers.churn_child", *arguments]
    with log_path.open("wb") as log:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            return child.wait(timeout=_MOST_S)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL
        finally:
            _end_group(child)


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """End what is left of the child's session: it can outlive a peer that fails."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:  # nothing is left
        return
    child.wait()


def _last_line(log_path: Path) -> str:
    lines = [line for line in log_path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"
