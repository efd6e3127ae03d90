"""The decode side of transfers: threads that ask for a room, read its pages, confirm the lease."""

import contextlib
import itertools
import logging
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch

from outrider.disaggregation.offer_key import OfferKey, offer_key_of
from outrider.disaggregation.page_transport import PageRead, PageSink
from outrider.disaggregation.side_channel import Message, SideChannel, open_channel
from outrider.errors import ConfigError
from outrider.runtime.node_connection import connect
from outrider.runtime.row_images import RowImages
from outrider.step.device_stream import DeviceEvent, DeviceStream
from outrider.wire.kv_transfer import SharedPrompt
from outrider.wire.transfer_order import TransferOrder

_NUM_THREADS = 16  # transfers at the same time
_MAX_ADDRESSES = 1024  # that are remembered: clients choose them
_UNKNOWN_S = 5.0  # that a room may be unknown: its request may come later than ours
_LOOK_S = 0.0005  # between two looks at a read
_HOLD_S = 2.0  # between two signs of life to the prefill engine while a read lasts

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class PageFetch:
    """One transfer."""

    name: str
    order: TransferOrder
    prompt: SharedPrompt
    writable: DeviceEvent  # after it, no earlier step writes the pages
    outcome: "Future[str]" = field(default_factory=Future)
    reads: list[PageRead] = field(default_factory=list)
    received: list[int] = field(default_factory=list)  # bytes of the side channel, at the end
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def num_bytes(self) -> int:
        return sum(self.received) + sum(read.num_bytes for read in self.reads)

    def cancel(self) -> None:
        self.cancelled.set()

    def is_released(self) -> bool:
        return self.outcome.done() and all(read.is_over() for read in self.reads)


@dataclass(frozen=True, slots=True)
class OpenChannel:
    """A connection to a prefill engine that has accepted us, and what it said."""

    channel: SideChannel
    welcome: Message


class PageFetches:
    """Owns the threads and the connections that are not in use."""

    def __init__(
        self,
        sink: PageSink,
        rows: RowImages,
        facts: Mapping[str, str],
        key: bytes,
        *,
        stream: DeviceStream,
        stall_s: float,
    ) -> None:
        self._sink = sink
        self._rows = rows
        self._facts = facts
        self._key = key
        self._stream = stream
        self._stall_s = stall_s
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._idle: defaultdict[tuple[str, int], list[OpenChannel]] = defaultdict(list)
        self._down_until_s: dict[tuple[str, int], float] = {}
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        for _ in range(_NUM_THREADS):
            threading.Thread(target=self._work, daemon=True, name="fetch").start()

    def begin(self, order: TransferOrder, prompt: SharedPrompt) -> PageFetch:
        # A request that has just ended frees pages that a submitted step still writes.
        writable = self._stream.record_event()
        fetch = PageFetch(str(next(self._numbers)), order, prompt, writable)
        self._jobs.put(lambda: self._run(fetch))
        return fetch

    def decline(self, order: TransferOrder, digest: str) -> None:
        self._jobs.put(lambda: self._decline(order, digest))

    def _work(self) -> None:
        while True:
            self._jobs.get()()

    def _run(self, fetch: PageFetch) -> None:
        """Never raises: a transfer without an outcome would hold its requests for ever."""
        try:
            with self._channel(fetch.order) as opened:
                opened.channel.take_num_received()
                try:
                    self._fetch(fetch, opened)
                finally:
                    fetch.received.append(opened.channel.take_num_received())
            reason = ""
        except (OSError, ConfigError) as error:
            reason = f"{fetch.order.host}:{fetch.order.port}: {error}"
        except Exception as error:
            _log.exception("a transfer failed")
            reason = f"{type(error).__name__}: {error}"
        if reason:
            self._rows.forget(fetch.name)
        fetch.outcome.set_result(reason)

    def _fetch(self, fetch: PageFetch, opened: OpenChannel) -> None:
        """Read, then ask whether the lease held: pages count only then."""
        channel, room = opened.channel, fetch.order.room
        offer = _await_offer(channel, room, fetch.cancelled)
        prompt, theirs = fetch.prompt, offer.get("pages")
        if (offer.get("digest"), offer.get("num_tokens")) != (prompt.digest, prompt.num_tokens):
            raise ConnectionError(f"room {room} holds the KV of another prompt")
        if not isinstance(theirs, list) or len(theirs) < len(prompt.pages):
            raise ConnectionError(f"room {room} has fewer pages than the prompt")
        key = offer_key_of({**offer, "room": room})
        fetch.writable.wait()
        read = self._sink.read(channel, opened.welcome, key, theirs, prompt.pages)
        fetch.reads.append(read)
        self._finish(read, fetch, channel, key)
        if prompt.has_row_state:
            self._rows.keep(fetch.name, self._read_row(channel, key))
        if not channel.ask(key.ask("confirm")).get("is_held"):
            raise ConnectionError("the lease lapsed while the pages were read")

    def _read_row(self, channel: SideChannel, key: OfferKey) -> torch.Tensor:
        answer = channel.ask(key.ask("row"))
        if not answer.get("is_held") or answer.get("num_bytes") != self._rows.row_bytes:
            raise ConnectionError("the lease ended before the row state was read")
        image = torch.empty(self._rows.row_bytes, dtype=torch.uint8)
        channel.receive_tensor(image)
        return image

    def forget(self, name: str) -> None:
        self._rows.forget(name)

    def _finish(
        self, read: PageRead, fetch: PageFetch, channel: SideChannel, key: OfferKey
    ) -> None:
        """Wait for a read, with signs of life to the prefill engine."""
        held_s = time.monotonic()
        while not read.is_done():
            if fetch.cancelled.is_set():
                raise ConnectionAbortedError("the request has ended")
            if time.monotonic() - held_s > _HOLD_S:
                if not channel.ask(key.ask("hold")).get("is_held"):
                    raise ConnectionError("the lease lapsed while the pages were read")
                held_s = time.monotonic()
            time.sleep(_LOOK_S)

    def _decline(self, order: TransferOrder, digest: str) -> None:
        """End a room that is not needed. Its lease would lapse anyway, but later."""
        try:
            with self._channel(order) as opened:
                offer = _await_offer(opened.channel, order.room, threading.Event())
                if offer.get("digest") == digest:  # rooms of other prompts are not ours to end
                    key = offer_key_of({**offer, "room": order.room})
                    opened.channel.ask(key.ask("confirm"))
        except (OSError, ConfigError) as error:
            _log.debug("room %s was not declined: %s", order.room, error)

    @contextlib.contextmanager
    def _channel(self, order: TransferOrder) -> Iterator[OpenChannel]:
        """A connection for this thread alone. It is used again, unless the body fails."""
        address = (order.host, order.port)
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

    def _take_idle(self, address: tuple[str, int]) -> OpenChannel | None:
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

    def _note_down(self, address: tuple[str, int]) -> None:
        """Let other requests not wait for an engine that has just been silent."""
        with self._lock:
            self._down_until_s.pop(address, None)  # the oldest come first
            self._down_until_s[address] = time.monotonic() + self._stall_s
            if len(self._down_until_s) > _MAX_ADDRESSES:
                del self._down_until_s[next(iter(self._down_until_s))]
            silent = self._idle.pop(address, [])
        for each in silent:
            each.channel.close()

    def _connect(self, address: tuple[str, int]) -> OpenChannel:
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


def _await_offer(channel: SideChannel, room: str, cancelled: threading.Event) -> Message:
    """What is known of a room, once its prompt is computed."""
    unknown_s = time.monotonic() + _UNKNOWN_S
    while True:
        if cancelled.is_set():
            raise ConnectionAbortedError("the request has ended")
        message = channel.ask({"kind": "state", "room": room})
        match message.get("state"):
            case "offered":
                return message
            case "expected":
                unknown_s = time.monotonic() + _UNKNOWN_S
            case "unknown" if time.monotonic() < unknown_s:
                continue
            case state:
                raise ConnectionError(f"room {room} is {state} at the prefill engine")
