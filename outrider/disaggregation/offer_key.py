"""Names one offer. A room can be offered again, with other pages, while an old reader is at it."""

from collections.abc import Mapping
from dataclasses import dataclass

from outrider.wire.transfer_order import MAX_ROOM_CHARS

MAX_WATCHED = 1024  # rooms of one question, which must fit into a message


@dataclass(frozen=True, slots=True)
class OfferKey:
    """A room, and what tells this offer from earlier ones in the same room."""

    room: str
    nonce: str

    def ask(self, kind: str, **more: int) -> dict[str, str | int]:
        """A message to the prefill engine about this offer."""
        return {"kind": kind, "room": self.room, "nonce": self.nonce, **more}


def room_of(message: Mapping[str, object]) -> str:
    room = message.get("room")
    if not isinstance(room, str) or len(room) > MAX_ROOM_CHARS:
        raise ValueError("a message names no room")
    return room


def rooms_of(message: Mapping[str, object], field: str) -> list[str]:
    """The rooms that a message lists; raises ValueError if it does not."""
    rooms = message.get(field)
    if not isinstance(rooms, list) or len(rooms) > MAX_WATCHED:
        raise ValueError(f"a message has no list of {field}")
    return [room_of({"room": each}) for each in rooms]


def first_page_of(message: Mapping[str, object]) -> int:
    """The place of the first page that a reader wants; raises ValueError if it is no number."""
    first = message.get("first")
    if not isinstance(first, int):
        raise ValueError("a message names no first page")
    return first


def offer_key_of(message: Mapping[str, object]) -> OfferKey:
    return OfferKey(room_of(message), str(message.get("nonce")))
