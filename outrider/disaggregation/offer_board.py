"""The rooms of a prefill engine. The engine's thread offers; the threads of readers ask."""

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from outrider.disaggregation.offer_key import OfferKey
from outrider.runtime.row_images import RowImages
from outrider.wire.kv_transfer import SharedPrompt

RoomState = Literal["unknown", "expected", "offered", "ended"]
_MAX_ENDED = 4096  # rooms that are remembered, so that late readers do not wait for them


@dataclass(slots=True)
class Offer:
    """A prompt that can be read until a moment, which every sign of its reader delays."""

    key: OfferKey
    prompt: SharedPrompt
    row_image: torch.Tensor  # [bytes] on the host; empty without row state
    ends_s: float  # of time.monotonic


class OfferBoard:
    """Owns what readers may know. A lease that has lapsed once is never confirmed."""

    def __init__(self, lease_s: float, rows: RowImages) -> None:
        self._lease_s = lease_s
        self._rows = rows
        self._changed = threading.Condition()
        self._expected: set[str] = set()
        self._offers: dict[str, Offer] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._to_free: list[str] = []  # rooms whose pages the engine still holds

    # The engine's thread.

    def expect(self, room: str) -> None:
        with self._changed:
            if room not in self._offers:
                self._expected.add(room)
                self._ended.pop(room, None)  # a request may be computed again by the same name
                self._changed.notify_all()

    def offer(self, room: str, prompt: SharedPrompt, row: int) -> None:
        has_image = prompt.has_row_state
        image = self._rows.read(row) if has_image else torch.empty(0, dtype=torch.uint8)
        with self._changed:
            self._expected.discard(room)
            key = OfferKey(room, secrets.token_hex(16))
            self._offers[room] = Offer(key, prompt, image, time.monotonic() + self._lease_s)
            self._changed.notify_all()

    def end(self, room: str) -> None:
        with self._changed:
            self._end(room)

    def take_ended(self) -> Sequence[str]:
        with self._changed:
            now_s = time.monotonic()
            for room in [each for each, own in self._offers.items() if own.ends_s <= now_s]:
                self._end(room)
                self._to_free.append(room)
            ended, self._to_free = self._to_free, []
            return ended

    def _end(self, room: str) -> None:
        self._expected.discard(room)
        self._offers.pop(room, None)
        self._ended[room] = None
        while len(self._ended) > _MAX_ENDED:
            self._ended.popitem(last=False)
        self._changed.notify_all()

    # The threads of readers.

    def watch(self, rooms: Sequence[str], *, held: Sequence[str], wait_s: float) -> list[RoomState]:
        """Where prompts are; waits a while for the first offer. Offers that are seen live longer.

        So do those of the rooms `held`, which their reader has seen before.
        """
        with self._changed:
            for room in held:
                self._renew(room)
            if rooms:
                self._changed.wait_for(lambda: any(map(self._is_settled, rooms)), wait_s)
            return [self._state(room) for room in rooms]

    def _is_settled(self, room: str) -> bool:
        return room in self._offers or room in self._ended

    def _state(self, room: str) -> RoomState:
        if self._renew(room) is not None:
            return "offered"
        if self._is_settled(room):  # a lease that has lapsed may not be taken back yet
            return "ended"
        return "expected" if room in self._expected else "unknown"

    def state(self, room: str) -> RoomState:
        """Where a prompt is now."""
        return self.watch([room], held=(), wait_s=0)[0]

    def find(self, room: str) -> Offer | None:
        """The offer of a room, whose lease begins anew; None if there is none."""
        with self._changed:
            return self._renew(room)

    def hold(self, key: OfferKey) -> Offer | None:
        """An offer, whose lease begins anew; None once it has ended."""
        with self._changed:
            return self._renew_same(key)

    def confirm(self, key: OfferKey) -> bool:
        """Whether the pages were held until now. The room ends."""
        with self._changed:
            was_held = self._renew_same(key) is not None
            if was_held:
                self._end(key.room)
                self._to_free.append(key.room)
            return was_held

    def _renew_same(self, key: OfferKey) -> Offer | None:
        """As `_renew`, unless the room was offered again since."""
        offer = self._offers.get(key.room)
        return self._renew(key.room) if offer is not None and offer.key == key else None

    def _renew(self, room: str) -> Offer | None:
        now_s, offer = time.monotonic(), self._offers.get(room)
        if offer is None or offer.ends_s <= now_s:
            return None
        offer.ends_s = now_s + self._lease_s
        return offer
