"""The default model answers and waits in less than 1 GB of resident memory."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.served import ServerProcess, wait_for

pytestmark = pytest.mark.slow

MOST_KB = 1_000_000_000 // 1024
MAIN = "from outrider.cli.main import main; main()"


def test_a_short_answer_of_the_default_model_takes_less_than_1_gb(smollm2_folder: Path) -> None:
    flags = ["--model", str(smollm2_folder), "--device", "cpu", "--max-tokens", "4"]
    process = subprocess.Popen([sys.executable, "-c", MAIN, "generate", "Hi", *flags])
    peak_kb = 0  # read while it runs: the rusage of a child begins with the memory of its parent
    while process.poll() is None:
        peak_kb = max(peak_kb, status_kb(process.pid, "VmHWM"))
        time.sleep(0.005)
    assert process.returncode == 0
    assert 0 < peak_kb < MOST_KB


def test_an_idle_server_of_the_default_model_takes_less_than_1_gb(
    smollm2_folder: Path, tmp_path: Path
) -> None:
    server = ServerProcess(smollm2_folder, tmp_path / "log")
    try:
        assert server.get("/health").status_code == 200
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        pids = [server.process.pid, *map(int, children.read_text().split())]
        assert len(pids) == 2
        # Once idle, the worker drops the pages of the model file that loading has read.
        wait_for(lambda: sum(status_kb(pid, "VmRSS") for pid in pids) < MOST_KB)
    finally:
        server.process.terminate()
        server.process.wait(60)


def status_kb(pid: int, field: str) -> int:
    """A field of a process's status; 0 if it has ended."""
    status = Path(f"/proc/{pid}/status").read_text()
    lines = [line for line in status.splitlines() if line.startswith(field)]
    return int(lines[0].split()[1]) if lines else 0
