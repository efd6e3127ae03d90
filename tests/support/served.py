"""A real server in its own process, as clients see it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx

LONG_S = 120.0  # nothing that is waited for takes so long, even on a busy machine
_MAIN = "from outrider.cli.main import main; main()"


class ServerProcess:
    """Owns `outrider serve` on a free port, from its ready line to its end."""

    def __init__(
        self, folder: Path, log: Path, *flags: str, environment: dict[str, str] | None = None
    ) -> None:
        arguments = ["--model", str(folder), "--port", "0", "--device", "cpu", *flags]
        self.log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _MAIN, "serve", *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={
                    **os.environ,
                    "OMP_WAIT_POLICY": "passive",
                    "OMP_NUM_THREADS": "1",
                    **(environment or {}),
                },
            )
        assert self.process.stdout is not None
        self.ready_line = self.process.stdout.readline().strip()
        assert " at http" in self.ready_line, log.read_text()
        self.url = self.ready_line.rpartition(" ")[2]

    def get(self, path: str, **more) -> httpx.Response:
        return httpx.get(self.url + path, **{"timeout": LONG_S, **more})

    def post(self, path: str, body: object, **more) -> httpx.Response:
        return httpx.post(self.url + path, json=body, **{"timeout": LONG_S, **more})

    @property
    def invariants(self) -> dict:
        return self.get("/invariants").json()

    def wait_until_idle(self) -> dict:
        """What is in use once the server is idle. Between two workers it cannot say."""
        wait_for(lambda: self.invariants.get("is_idle"))
        return self.invariants

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def stop(self) -> int:
        """The exit code after a signal; fails if the server does not end."""
        self.terminate()
        try:
            return self.process.wait(LONG_S)
        finally:
            self.process.kill()


def wait_for(holds: Callable[[], bool], *, within_s: float = LONG_S) -> None:
    """Wait until a condition holds, or fail."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.02)
