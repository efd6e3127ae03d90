"""A router from the package index in front of real servers."""

import shutil
import subprocess

import httpx
import pytest

from support.role_servers import free_port
from support.served import LONG_S, wait_for


class RouterProcess:
    """Owns sglang-router on a free port, which follows the health of its servers."""

    def __init__(self, log, urls, *flags):
        if shutil.which("sglang-router") is None:
            pytest.skip("sglang-router is not installed (pip install sglang-router)")
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = ["sglang-router", "launch", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--worker-urls", *urls, "--prometheus-port", str(free_port())]
        command += ["--health-check-interval-secs", "1", "--health-success-threshold", "1"]
        command += ["--health-failure-threshold", "1", *flags]
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output)
        self._log, self._client = log, httpx.Client(timeout=LONG_S)
        wait_for(lambda: len(self.healthy) == len(urls))

    @property
    def healthy(self):
        """URLs of the servers that it sends requests to."""
        assert self.process.poll() is None, self._log.read_text()
        try:
            workers = self._client.get(self.url + "/workers").json()["workers"]
        except httpx.HTTPError:
            return []  # it starts
        return [each["url"] for each in workers if each["is_healthy"]]

    def post(self, path, body):
        return self._client.post(self.url + path, json=body)

    def close(self):
        self._client.close()
        self.process.kill()
        self.process.wait()
