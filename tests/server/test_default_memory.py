"""The default model answers and waits in less than 1 GB of resident memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.served import ServerProcess

pytestmark = pytest.mark.slow

MOST_KB = 1_000_000_000 // 1024
MAIN = "from outrider.cli.main import main; main()"


def test_a_short_answer_of_the_default_model_takes_less_than_1_gb(smollm2_folder: Path) -> None:
    flags = ["--model", str(smollm2_folder), "--device", "cpu", "--max-tokens", "4"]
    process = subprocess.Popen([sys.executable, "-c", MAIN, "generate", "Hi", *flags])
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    assert usage.ru_maxrss < MOST_KB


def test_an_idle_server_of_the_default_model_takes_less_than_1_gb(
    smollm2_folder: Path, tmp_path: Path
) -> None:
    server = ServerProcess(smollm2_folder, tmp_path / "log")
    try:
        assert server.get("/health").status_code == 200
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        pids = [server.process.pid, *map(int, children.read_text().split())]
        assert len(pids) == 2
        assert sum(map(resident_kb, pids)) < MOST_KB
    finally:
        server.process.terminate()
        server.process.wait(60)


def resident_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1])
