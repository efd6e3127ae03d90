"""Workers that cannot be started: nothing is left of them, and the next attempt follows."""

import asyncio
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.config.engine_config import EngineConfig
from outrider.config.log_settings import LogSettings
from outrider.errors import ConfigError
from outrider.server.heartbeat import HeartbeatLimits
from outrider.server.supervisor import Supervisor
from outrider.server.worker_messages import FromLoadedWorker, ToWorker
from outrider.server.worker_plans import WorkerPlan
from outrider.wire.runner_facts import RankFacts


class Listener:
    """No worker ever comes."""

    def attach_worker(
        self, send: Callable[[ToWorker], None], pid: int, ranks: tuple[RankFacts, ...]
    ) -> None:
        raise AssertionError

    def receive(self, message: FromLoadedWorker) -> None:
        raise AssertionError

    def note_trouble(self, reason: str) -> None:
        raise AssertionError

    def detach_worker(self, lost_steps: frozenset[str]) -> None:
        raise AssertionError


@pytest.fixture(name="supervisor")
def supervisor_without_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/no/such/program")
    limits, log = HeartbeatLimits(step_s=60.0), LogSettings()
    return Supervisor(
        tmp_path, WorkerPlan(EngineConfig(), {}), lambda *_: None, limits=limits, log=log
    )


def test_a_worker_that_cannot_be_started_leaves_no_folder_and_no_file(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    async def fail() -> None:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            with pytest.raises(ConfigError, match="worker cannot be started"):
                await supervisor.start()
        assert not list(tmp_path.iterdir())
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(fail())


def test_the_server_goes_on_trying_to_start_a_worker(
    supervisor: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    async def watch() -> None:
        running = asyncio.create_task(supervisor.run(Listener()))
        while len(caplog.records) < 2 and not running.done():
            await asyncio.sleep(0.01)
        assert not running.done()
        running.cancel()

    with caplog.at_level(logging.ERROR, "outrider.server.supervisor"):
        asyncio.run(asyncio.wait_for(watch(), 30))
    assert all("trying again" in each.message for each in caplog.records)
