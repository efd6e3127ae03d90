"""Starts learning beside a server, if it is wanted, and ends it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from outrider.config.learn_config import NEWEST, LearnConfig
from outrider.config.log_settings import LogSettings
from outrider.frontend.open_model import OpenedModel
from outrider.hub.learn_folder import LearnFolder, open_learn_folder
from outrider.server.async_engine import AsyncEngine
from outrider.server.learner_link import LearnerLink, open_learner
from outrider.server.learner_messages import LearnerConfig
from outrider.server.learning import HeadLearning
from outrider.server.supervisor import Supervisor


class LearnerHome:
    """Owns the process that trains, from its start to its end."""

    def __init__(self, link: LearnerLink, folder: LearnFolder, version: int, lock: TextIO) -> None:
        self._lock = lock  # held while the file is open
        self._link = link
        self._folder = folder
        self._version = version
        self._following: asyncio.Task[None] | None = None

    def attach(self, async_engine: AsyncEngine, supervisor: Supervisor) -> None:
        """Learn from the requests of this server, and change its head."""
        (replica,) = async_engine.replicas

        async def use_head(folder: str) -> None:
            await replica.sleeping.use_head(folder)
            supervisor.use_head(folder)

        learning = HeadLearning(
            self._link,
            self._folder,
            use_head,
            async_engine.meter.open_learning(),
            version=self._version,
        )
        async_engine.learning = learning
        self._following = asyncio.create_task(learning.follow())
        async_engine.note_load()

    async def stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
        await self._link.close()
        self._lock.close()


class NoLearner:
    """For a server without --learn."""

    def attach(self, async_engine: AsyncEngine, supervisor: Supervisor) -> None:
        pass

    async def stop(self) -> None:
        pass


AnyLearner = LearnerHome | NoLearner


async def start_learner(
    config: LearnConfig, opened: OpenedModel, log: LogSettings, supervisors: Sequence[Supervisor]
) -> AnyLearner:
    """The learner, once it has loaded the head.

    The worker begins with the version that the learner begins with.
    """
    if not config.is_enabled:
        return NoLearner()
    folder = open_learn_folder(config.folder, Path(opened.config.draft.drafter))
    lock = folder.lock()
    version = folder.current if config.version == NEWEST else config.version
    head = folder.head(version)
    for supervisor in supervisors:
        supervisor.use_head(str(head))
    link = await open_learner(
        LearnerConfig(
            target_folder=str(opened.folder.resolve()),
            head_folder=str(folder.start),
            learn_folder=str(folder.path.resolve()),
            version=version,
            device=opened.config.device,
            buffer_bytes=config.buffer_bytes,
            log=log,
        )
    )
    try:
        await link.ready()
        folder.use(version)
    except BaseException:
        await link.close()
        raise
    return LearnerHome(link, folder, version, lock)
