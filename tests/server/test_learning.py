"""Which head a server uses when a learner offers versions; the test plays the learner."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import zmq
import zmq.asyncio
from prometheus_client import CollectorRegistry

from outrider.errors import RequestError
from outrider.hub.learn_folder import LearnedVersion, LearnFolder
from outrider.server.learn_metrics import LearnMetrics
from outrider.server.learner_link import LearnerLink
from outrider.server.learner_messages import (
    Busy,
    HeadInUse,
    HeadOffer,
    HeadRefused,
    Idle,
    SetPaused,
    decode_to_learner,
    encode_learner,
)
from outrider.server.learning import HeadLearning

WAIT_FOR_INPUT = "import sys; sys.stdin.read()"


@dataclass
class Played:
    """Learning, and the end of the socket that the test has."""

    learning: HeadLearning
    socket: zmq.asyncio.Socket
    used: list[str]  # heads that the engine changed to

    async def offer(self, version: int) -> None:
        await self.socket.send(encode_learner(HeadOffer(version)))

    async def receive(self):
        return decode_to_learner(await self.socket.recv())


def play(root: Path, body: Callable[[Played], Awaitable[None]]) -> None:
    """Run the body beside a process that stands for the learner's and lives as long."""

    async def run() -> None:
        context = zmq.asyncio.Context()
        ours, theirs = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        ours.bind(f"ipc://{root}/socket")
        theirs.connect(f"ipc://{root}/socket")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WAIT_FOR_INPUT, stdin=PIPE
        )
        link = LearnerLink(process, ours, ExitStack())
        used: list[str] = []

        async def use_head(folder: str) -> None:
            await asyncio.sleep(0.01)  # other tasks run meanwhile
            used.append(Path(folder).parent.name)

        metrics = LearnMetrics(CollectorRegistry(), "tiny")
        learning = HeadLearning(link, write_versions(root), use_head, metrics, version=1)
        following = asyncio.create_task(learning.follow())
        await body(Played(learning, theirs, used))
        following.cancel()
        assert process.stdin is not None
        process.stdin.close()
        await link.close()
        context.destroy(linger=0)

    asyncio.run(asyncio.wait_for(run(), 60))


def write_versions(root: Path) -> LearnFolder:
    (root / "start" / "head").mkdir(parents=True)
    folder = LearnFolder(path=root / "learned", start=root / "start" / "head")
    for version in (1, 2):
        facts = LearnedVersion(
            version=version,
            parent=version - 1,
            steps=1,
            texts=8,
            acceptance_before=1.0,
            acceptance_after=1.1,
        )
        with folder.new_version(facts) as head:
            head.mkdir()
    folder.use(1)
    return folder


def test_an_offered_head_waits_until_no_request_is_there(tmp_path):
    async def body(played: Played) -> None:
        played.learning.note_load(is_idle=False)
        await played.offer(2)
        assert await played.receive() == Busy()
        await asyncio.sleep(0.05)
        assert played.used == []
        played.learning.note_load(is_idle=True)
        assert await played.receive() == Idle()
        assert await played.receive() == HeadInUse(2)
        assert played.used == ["version-0002"]
        assert played.learning.describe()["version"] == 2

    play(tmp_path, body)


def test_a_head_that_was_offered_before_a_rollback_is_not_taken_after_it(tmp_path):
    async def body(played: Played) -> None:
        played.learning.note_load(is_idle=True)
        rolling = asyncio.create_task(played.learning.roll_back(None))
        await asyncio.sleep(0)
        await played.offer(2)  # the learner has not heard of the rollback
        await rolling
        assert await played.receive() == Idle()
        assert await played.receive() == SetPaused(True)
        assert await played.receive() == HeadInUse(0)
        assert await played.receive() == HeadRefused(2, "learning is paused")
        assert played.used == ["start"]
        assert played.learning.describe()["version"] == 0
        assert LearnFolder(path=tmp_path / "learned", start=tmp_path / "start/head").current == 0

    play(tmp_path, body)


def test_a_head_that_was_trained_from_one_that_was_rolled_back_is_refused(tmp_path):
    async def body(played: Played) -> None:
        played.learning.note_load(is_idle=True)
        await played.learning.roll_back(None)
        played.learning.set_paused(False)  # before the offer has come
        await played.offer(2)
        for told in (Idle(), SetPaused(True), HeadInUse(0), SetPaused(False)):
            assert await played.receive() == told
        reason = "it was trained from version 1, and version 0 is in use"
        assert await played.receive() == HeadRefused(2, reason)
        assert played.used == ["start"]

    play(tmp_path, body)


def test_there_is_nothing_before_the_first_head(tmp_path):
    async def body(played: Played) -> None:
        await played.learning.roll_back(0)
        with pytest.raises(RequestError, match="none before it"):
            await played.learning.roll_back(None)

    play(tmp_path, body)


def test_the_end_of_the_learner_is_told_and_heads_can_still_be_rolled_back(tmp_path):
    async def body(played: Played) -> None:
        played.learning._link._process.stdin.close()
        while played.learning.describe()["state"] != "failed":
            await asyncio.sleep(0.01)
        assert "has ended" in played.learning.describe()["reason"]
        await played.learning.roll_back(0)
        assert played.used == ["start"]

    play(tmp_path, body)
