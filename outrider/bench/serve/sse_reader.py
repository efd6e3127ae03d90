"""Parses server-sent events from bytes that may be cut anywhere; does not read their data."""

from dataclasses import dataclass

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Event:
    """One event; a stream that does not name its events has empty names."""

    name: str
    data: str


class EventParser:
    """Owns the parts of the current line and event that have arrived so far."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # of the line that has not ended
        self._name = ""
        self._data: list[str] = []  # lines of the event that has not ended
        self._is_first_line = True
        self._is_after_return = False

    def feed(self, piece: bytes) -> list[Event]:
        """The events that these bytes complete."""
        if self._is_after_return:  # the other half of a line end that was cut in two
            piece = piece.removeprefix(b"\n") if piece else piece
        if not piece:
            return []
        self._is_after_return = piece.endswith(b"\r")
        self._pieces.append(piece)
        if b"\n" not in piece and b"\r" not in piece:
            return []  # a long line is joined once, not at every piece
        lines = b"".join(self._pieces).splitlines(keepends=True)
        rest = b"" if lines[-1].endswith((b"\n", b"\r")) else lines.pop()
        self._pieces = [rest] if rest else []
        return [event for line in lines for event in self._take(line)]

    def close(self) -> list[Event]:
        """What is left at the end of the stream: some servers leave out the last line ends."""
        lines = b"".join(self._pieces).splitlines()
        self._pieces = []
        return [event for line in [*lines, b""] for event in self._take(line)]

    def _take(self, line: bytes) -> list[Event]:
        if self._is_first_line:
            self._is_first_line = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        text = line.rstrip(b"\r\n").decode("utf-8", errors="replace")
        if not text:
            return self._dispatch()
        field, _, value = text.partition(":")  # a comment is a field without a name
        if field == "data":
            self._data.append(value.removeprefix(" "))
        elif field == "event":
            self._name = value.removeprefix(" ")
        return []

    def _dispatch(self) -> list[Event]:
        events = [Event(self._name, "\n".join(self._data))] if self._data else []
        self._name, self._data = "", []
        return events
