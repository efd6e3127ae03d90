"""Waits for rooms of prefill engines: one thread and one connection for all rooms of an engine.

The engine is told of every room that is still wanted, so that its lease does not lapse while a
read waits for pages or for another read.
"""

import logging
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from outrider.disaggregation.offer_key import MAX_WATCHED
from outrider.disaggregation.prefill_channels import Address, PrefillChannels
from outrider.disaggregation.side_channel import Message, SideChannel
from outrider.errors import ConfigError
from outrider.wire.transfer_order import TransferOrder

_UNKNOWN_S = 5.0  # that a room may be unknown: its request may come later than ours
_HOLD_S = 2.0  # between two signs of life to a prefill engine of which no offer is awaited
_MAX_ENGINES = 256  # that are watched at the same time: clients choose them

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class WatchedRoom:
    """A room that is wanted until it is left, or cannot be had."""

    order: TransferOrder
    offered: "Future[str]" = field(default_factory=Future)
    is_left: bool = False
    _known_s: float = field(default_factory=time.monotonic)

    def leave(self) -> None:
        self.is_left = True

    @property
    def is_wanted(self) -> bool:
        return not self.is_left and not (self.offered.done() and self.offered.result())

    def note(self, state: object) -> None:
        """What the prefill engine has said of it."""
        now_s = time.monotonic()
        if state == "offered":
            self.offered.set_result("")
        elif state == "expected":
            self._known_s = now_s
        elif state != "unknown" or now_s > self._known_s + _UNKNOWN_S:
            self.fail(f"room {self.order.room} is {state} at the prefill engine")

    def fail(self, reason: str) -> None:
        if not self.offered.done():
            self.offered.set_result(f"{self.order.host}:{self.order.port}: {reason}")


class OfferWatch:
    """Owns the rooms that are wanted, and a thread for each engine that has some of them."""

    def __init__(self, channels: PrefillChannels) -> None:
        self._channels = channels
        self._changed = threading.Condition()
        self._rooms: dict[Address, list[WatchedRoom]] = {}

    def begin(self, order: TransferOrder) -> WatchedRoom:
        room, address = WatchedRoom(order), order.address
        with self._changed:
            is_new = address not in self._rooms
            if is_new and len(self._rooms) >= _MAX_ENGINES:
                room.fail(f"{_MAX_ENGINES} other prefill engines are waited for")
                return room
            self._rooms.setdefault(address, []).append(room)
            self._changed.notify_all()
        if is_new:
            self._start(address)
        return room

    def _start(self, address: Address) -> None:
        try:
            threading.Thread(
                target=self._watch, args=(address,), daemon=True, name="offers"
            ).start()
        except RuntimeError as error:  # there are too many threads
            self._fail(address, str(error))
            del self._rooms[address]

    def _watch(self, address: Address) -> None:
        """Ask for the rooms of an engine until none is wanted."""
        while not self._is_forgotten(address):
            try:
                with self._channels.use(address) as opened:
                    self._ask_on(opened.channel, address)
            except (OSError, ConfigError) as error:
                self._fail(address, str(error))
            except Exception as error:  # a room without an end would hold its requests for ever
                _log.exception("rooms are not watched any more")
                self._fail(address, f"{type(error).__name__}: {error}")

    def _ask_on(self, channel: SideChannel, address: Address) -> None:
        while rooms := self._wanted(address):
            for start in range(0, len(rooms), MAX_WATCHED):
                _ask(channel, rooms[start : start + MAX_WATCHED])
            with self._changed:  # signs of life are enough while no offer is awaited
                self._changed.wait_for(lambda: self._has_awaited(address), _HOLD_S)

    def _wanted(self, address: Address) -> list[WatchedRoom]:
        with self._changed:
            wanted = [each for each in self._rooms[address] if each.is_wanted]
            self._rooms[address] = wanted
            return wanted

    def _has_awaited(self, address: Address) -> bool:
        return any(each.is_wanted and not each.offered.done() for each in self._rooms[address])

    def _is_forgotten(self, address: Address) -> bool:
        """Whether no room of the engine is wanted. Then its thread ends."""
        with self._changed:
            is_forgotten = not any(each.is_wanted for each in self._rooms[address])
            if is_forgotten:
                del self._rooms[address]
            return is_forgotten

    def _fail(self, address: Address, reason: str) -> None:
        """The engine cannot be asked. Of rooms that it offered, the read finds out."""
        with self._changed:
            failed, self._rooms[address] = self._rooms[address], []
        for each in failed:
            each.fail(reason)


def _ask(channel: SideChannel, rooms: list[WatchedRoom]) -> None:
    """Ask for rooms that are not offered yet, and tell that the others are still wanted."""
    awaited = [each for each in rooms if not each.offered.done()]
    message: Message = {
        "kind": "watch",
        "rooms": [each.order.room for each in awaited],
        "held": [each.order.room for each in rooms if each.offered.done()],
    }
    states = channel.ask(message).get("states")
    if not isinstance(states, list) or len(states) != len(awaited):
        raise ConnectionError("the prefill engine does not tell where its rooms are")
    for room, state in zip(awaited, states, strict=True):
        room.note(state)
