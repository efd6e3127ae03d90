"""Learning as the server sees it: which texts are learned from, and which head is in use."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from outrider.errors import ConfigError, OutriderError, RequestError
from outrider.frontend.request_state import RequestState
from outrider.hub.learn_folder import BEFORE_LEARNING, LearnFolder
from outrider.server.http_errors import ApiError
from outrider.server.learn_metrics import LearnMetrics
from outrider.server.learner_link import LearnerLink
from outrider.server.learner_messages import (
    Busy,
    HeadInUse,
    HeadOffer,
    HeadRefused,
    Idle,
    LearnerRefused,
    LearnStatus,
    LearnText,
    SetPaused,
)

UseHead = Callable[[str], Awaitable[None]]  # the engine drafts with the head in this folder

_MOST_UNREAD = 1000  # texts that the learner has not taken in; further ones are dropped
_MOST_TOKENS = 1024  # of a prompt's end, and of an answer's beginning: no learner keeps more

_log = logging.getLogger(__name__)


class Learning(Protocol):
    """What the rest of the server tells and asks."""

    def note_request(self, request: RequestState) -> None:
        """A request has ended."""
        ...

    def note_load(self, *, is_idle: bool) -> None:
        """Whether no request runs or waits."""
        ...

    def describe(self) -> dict[str, Any]:
        """What has been learned, for `/server_info` and `/learn`."""
        ...

    def set_paused(self, is_paused: bool) -> None: ...

    async def roll_back(self, version: int | None) -> None:
        """Draft with an earlier version; without a number, with the one before."""
        ...


class NoLearning:
    """For a server without --learn."""

    def note_request(self, request: RequestState) -> None:
        del request

    def note_load(self, *, is_idle: bool) -> None:
        del is_idle

    def describe(self) -> dict[str, Any]:
        return {"is_enabled": False}

    def set_paused(self, is_paused: bool) -> None:
        del is_paused
        raise _not_enabled()

    async def roll_back(self, version: int | None) -> None:
        del version
        raise _not_enabled()


class HeadLearning:
    """Owns what is known of the learner, and changes heads between steps of the engine."""

    def __init__(
        self,
        link: LearnerLink,
        folder: LearnFolder,
        use_head: UseHead,
        metrics: LearnMetrics,
        *,
        version: int,
    ) -> None:
        self._link = link
        self._folder = folder
        self._use_head = use_head
        self._metrics = metrics
        self._version = version  # in use
        self._status = LearnStatus(version=self._version)
        self._num_sent = 0  # texts
        self._is_idle: bool | None = None  # as the learner was told
        self._is_paused = False
        self._offered = BEFORE_LEARNING  # the version that waits until no request is there
        self._turn = asyncio.Lock()  # one head is changed at a time
        self._taking: asyncio.Task[None] | None = None

    def note_request(self, request: RequestState) -> None:
        """Learn from a request: only from texts that the target alone has written."""
        prepared = request.prepared
        # Requests with a salt share nothing with others, and a head is shared.
        if not prepared.params.learn or prepared.params.cache_salt:
            return
        if prepared.adapter.is_wanted or prepared.embeds or prepared.images:
            return
        if self._num_sent - self._status.texts >= _MOST_UNREAD:
            return  # the learner is slow or gone, and is never waited for
        for output in request.outputs:
            if output.ending.finish in ("stop", "length") and len(output.token_ids) > 1:
                temperature = prepared.params.temperature
                self._num_sent += 1
                self._link.send(cut_text(prepared.prompt, output.token_ids, temperature))

    def note_load(self, *, is_idle: bool) -> None:
        if is_idle == self._is_idle:
            return
        self._is_idle = is_idle
        self._link.send(Idle() if is_idle else Busy())
        self._take_offered()

    def describe(self) -> dict[str, Any]:
        status = msgspec.structs.asdict(self._status)
        return {"is_enabled": True, **status, "is_paused": self._is_paused}

    def set_paused(self, is_paused: bool) -> None:
        self._is_paused = is_paused
        self._link.send(SetPaused(is_paused))

    async def roll_back(self, version: int | None) -> None:
        """At once, also while requests run. Nothing is learned after it until `/learn/resume`."""
        if version is None and self._version == BEFORE_LEARNING:
            raise RequestError("the head before learning is in use; there is none before it")
        wanted = self._folder.parent(self._version) if version is None else version
        self._folder.head(wanted)  # refuses one that is not there
        self.set_paused(True)  # from here on no offered version is taken
        async with self._turn:
            await self._change(wanted)

    async def follow(self) -> None:
        """Take in what the learner sends, until it ends or this is cancelled."""
        async for message in self._link.messages():
            if isinstance(message, LearnStatus):
                self._note(message)
            elif isinstance(message, HeadOffer):
                self._offered = message.version
                self._take_offered()
            elif isinstance(message, LearnerRefused):
                self._note(msgspec.structs.replace(self._status, reason=message.reason))
        reason = self._status.reason or "the process that trains has ended; see its messages"
        _log.error("nothing is learned any more: %s", reason)
        self._note(msgspec.structs.replace(self._status, state="failed", reason=reason))

    def _take_offered(self) -> None:
        """Use the offered version, if no request would have to wait for it."""
        if self._offered and (self._is_idle or self._is_paused):
            self._taking = asyncio.create_task(self._take(self._offered))
            self._offered = BEFORE_LEARNING

    async def _take(self, version: int) -> None:
        """Use a version, or refuse it. An operator who paused learning wants no other head."""
        async with self._turn:
            try:
                if self._is_paused:
                    raise RequestError("learning is paused")
                self._check_parent(version)
                await self._change(version)
            except (OutriderError, ApiError) as error:
                self._link.send(HeadRefused(version, str(error)))

    def _check_parent(self, version: int) -> None:
        """Refuse a version whose offer a rollback has overtaken: it has what was rolled back."""
        parent = self._folder.parent(version)
        if parent != self._version:
            raise ConfigError(
                f"it was trained from version {parent}, and version {self._version} is in use"
            )

    async def _change(self, version: int) -> None:
        await self._use_head(str(self._folder.head(version)))
        _log.info("version %d of the head is in use, after version %d", version, self._version)
        self._version = version
        self._note(self._status)
        self._link.send(HeadInUse(version))
        try:
            await asyncio.to_thread(self._folder.use, version)
        except ConfigError as error:
            _log.error("the next start will use another version: %s", error)

    def _note(self, status: LearnStatus) -> None:
        """Take in a status of the learner, which may not know yet which version is in use."""
        self._status = msgspec.structs.replace(status, version=self._version)
        self._metrics.note(self._status)


def cut_text(prompt: Sequence[int], answer: Sequence[int], temperature: float) -> LearnText:
    """What a learner can use of a text. Long ones that it has not read yet take memory here."""
    context = prompt[max(0, len(prompt) - _MOST_TOKENS) :]
    return LearnText((*context, *answer[:_MOST_TOKENS]), len(context), temperature)


def _not_enabled() -> RequestError:
    return RequestError("this server does not learn; start it with --learn")
