"""Child processes die with their owner, even if they are stopped or hang in a call."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import is_running
from support.served import wait_for

CHILD = """
import sys
from outrider.config.owner_life import kill_with_owner
kill_with_owner(sys.stdin.fileno())
print("lives", flush=True)
sum(range(10**12))  # one call, which no other thread can interrupt
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal is Linux's")
@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_child_that_hangs_or_is_stopped_dies_with_its_owner(is_stopped):
    command = [sys.executable, "-c", CHILD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"lives\n"
        if is_stopped:
            os.kill(child.pid, signal.SIGSTOP)
        child.stdin.close()  # what the kernel does when the owner ends
        try:
            assert child.wait(10) == -signal.SIGKILL
        finally:
            child.kill()


DOWNLOAD = """
import sys
from pathlib import Path
from outrider.hub import wheel_download
from outrider.hub.download_progress import SilentReporter
wheel_download._download("some-wheel==1.0", Path(sys.argv[1]), SilentReporter())
"""


def children_of(pid):
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


@pytest.mark.slow
def test_a_download_that_stalls_ends_with_its_owner(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as index:  # accepts, and never answers
        url = f"http://127.0.0.1:{index.getsockname()[1]}/simple"
        owner = subprocess.Popen(
            [sys.executable, "-c", DOWNLOAD, str(tmp_path)],
            env={**os.environ, "PIP_INDEX_URL": url, "PIP_CONFIG_FILE": os.devnull},
        )
        connection, _ = index.accept()
        (pip,) = children_of(owner.pid)
        owner.kill()
        owner.wait()
        wait_for(lambda: not is_running(pip), within_s=5)  # pip itself would wait for 15 s
        connection.close()
