"""Connections of a decode engine to prefill engines."""

import contextlib
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from outrider.disaggregation.side_channel import Message, SideChannel, open_channel
from outrider.errors import ConfigError
from outrider.runtime.node_connection import connect

Address = tuple[str, int]
_MAX_ADDRESSES = 1024  # that are remembered: clients choose them

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenChannel:
    """A connection to a prefill engine that has accepted us, and what it said."""

    channel: SideChannel
    welcome: Message


class PrefillChannels:
    """Owns the connections that are not in use, and remembers which engines were silent."""

    def __init__(self, facts: Mapping[str, str], key: bytes, *, stall_s: float) -> None:
        self._facts = facts
        self._key = key
        self._stall_s = stall_s
        self._lock = threading.Lock()
        self._idle: defaultdict[Address, list[OpenChannel]] = defaultdict(list)
        self._down_until_s: dict[Address, float] = {}

    @contextlib.contextmanager
    def use(self, address: Address) -> Iterator[OpenChannel]:
        """A connection for this thread alone. It is used again, unless the body fails."""
        opened = self._take_idle(address)
        try:
            opened = opened or self._connect(address)
            yield opened
        except BaseException as error:
            if opened is not None:
                opened.channel.close()
            is_silent = isinstance(error, BlockingIOError | TimeoutError)
            if is_silent or (opened is None and isinstance(error, OSError)):
                self._note_down(address)
            raise
        with self._lock:
            self._idle[address].append(opened)
            is_full = len(self._idle) > _MAX_ADDRESSES
            oldest = self._idle.pop(next(iter(self._idle))) if is_full else []
        for each in oldest:
            each.channel.close()

    def _take_idle(self, address: Address) -> OpenChannel | None:
        """A connection of an earlier transfer, unless the prefill engine was restarted since."""
        with self._lock:
            idle = self._idle.get(address, [])
            while idle:
                opened = idle.pop()
                if not opened.channel.is_closed:
                    return opened
                opened.channel.close()
            if self._down_until_s.get(address, 0.0) > time.monotonic():
                raise ConnectionError("the prefill engine did not answer a moment ago")
        return None

    def _note_down(self, address: Address) -> None:
        """Let other requests not wait for an engine that has just been silent."""
        with self._lock:
            self._down_until_s.pop(address, None)  # the oldest come first
            self._down_until_s[address] = time.monotonic() + self._stall_s
            if len(self._down_until_s) > _MAX_ADDRESSES:
                del self._down_until_s[next(iter(self._down_until_s))]
            silent = self._idle.pop(address, [])
        for each in silent:
            each.channel.close()

    def _connect(self, address: Address) -> OpenChannel:
        try:
            opened = connect(address, self._key, time.monotonic() + self._stall_s)
        except ConfigError as error:
            raise ConfigError(
                "it is no prefill engine, or has another secret; set OUTRIDER_RANKS_KEY to the "
                "same one on both"
            ) from error
        channel = open_channel(opened, self._key, "decode", stall_s=self._stall_s)
        try:
            welcome = channel.ask({"facts": dict(self._facts)})
        except OSError:
            channel.close()
            raise
        if welcome.get("refused"):
            channel.close()
            _log.error("%s:%d refuses: %s", *address, welcome["refused"])
            raise ConfigError(str(welcome["refused"]))
        return OpenChannel(channel, welcome)
