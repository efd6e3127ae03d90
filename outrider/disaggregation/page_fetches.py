"""The decode side of transfers: threads that read the pages of a room, and confirm its lease."""

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch

from outrider.disaggregation.offer_key import OfferKey, offer_key_of
from outrider.disaggregation.offer_watch import OfferWatch, WatchedRoom
from outrider.disaggregation.page_transport import PageRead, PageSink
from outrider.disaggregation.prefill_channels import OpenChannel, PrefillChannels
from outrider.disaggregation.side_channel import Message, SideChannel
from outrider.errors import ConfigError
from outrider.runtime.row_images import RowImages
from outrider.step.device_stream import DeviceEvent, DeviceStream
from outrider.wire.kv_transfer import SharedPrompt
from outrider.wire.transfer_order import TransferOrder

_NUM_THREADS = 16  # reads at the same time
_LOOK_S = 0.0005  # between two looks at a read
_HOLD_S = 2.0  # between two signs of life to the prefill engine while a read lasts

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class PageFetch:
    """One read of pages."""

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

    def take_back(self) -> bool:
        return self.outcome.cancel()

    def cancel(self) -> None:
        self.cancelled.set()

    def is_released(self) -> bool:
        return self.outcome.done() and all(read.is_over() for read in self.reads)


class PageFetches:
    """Owns the threads that read."""

    def __init__(
        self,
        sink: PageSink,
        rows: RowImages,
        channels: PrefillChannels,
        *,
        stream: DeviceStream,
    ) -> None:
        self._sink = sink
        self._rows = rows
        self._channels = channels
        self._watch = OfferWatch(channels)
        self._stream = stream
        self._numbers = itertools.count(1)
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        for _ in range(_NUM_THREADS):
            threading.Thread(target=self._work, daemon=True, name="fetch").start()

    def ask(self, order: TransferOrder) -> WatchedRoom:
        return self._watch.begin(order)

    def read(self, order: TransferOrder, prompt: SharedPrompt) -> PageFetch:
        # A request that has just ended frees pages that a submitted step still writes.
        writable = self._stream.record_event()
        fetch = PageFetch(str(next(self._numbers)), order, prompt, writable)
        self._jobs.put(lambda: self._run(fetch))
        return fetch

    def decline(self, order: TransferOrder, digest: str) -> None:
        room = self._watch.begin(order)
        room.offered.add_done_callback(
            lambda _: self._jobs.put(lambda: self._end_room(room, digest))
        )

    def forget(self, name: str) -> None:
        self._rows.forget(name)

    def _work(self) -> None:
        while True:
            self._jobs.get()()

    def _run(self, fetch: PageFetch) -> None:
        """Never raises: a transfer without an outcome would hold its requests for ever."""
        if not fetch.outcome.set_running_or_notify_cancel():
            return  # its pages were taken back
        try:
            with self._channels.use(fetch.order.address) as opened:
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
        offer = _find_offer(channel, room)
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

    def _end_room(self, room: WatchedRoom, digest: str) -> None:
        """End a room that is not needed. Its lease would lapse anyway, but later."""
        try:
            if not room.offered.result():
                with self._channels.use(room.order.address) as opened:
                    offer = _find_offer(opened.channel, room.order.room)
                    if offer.get("digest") == digest:  # rooms of other prompts are not ours to end
                        key = offer_key_of({**offer, "room": room.order.room})
                        opened.channel.ask(key.ask("confirm"))
        except (OSError, ConfigError) as error:
            _log.debug("room %s was not declined: %s", room.order.room, error)
        room.leave()


def _find_offer(channel: SideChannel, room: str) -> Message:
    """What a prefill engine offers in a room; raises OSError if it does not any more."""
    offer = channel.ask({"kind": "state", "room": room})
    if offer.get("state") != "offered":
        raise ConnectionError(f"room {room} is {offer.get('state')} at the prefill engine")
    return offer
