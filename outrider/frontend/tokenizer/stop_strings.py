"""Stop strings in streamed text: what may be shown now, and where the text ends."""

from dataclasses import dataclass

from outrider.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class StopScan:
    """What one piece of text led to."""

    text: str  # safe to show: no stop string can begin in it
    matched: str  # the stop string that ends the text, or ""


class StopStrings:
    """Owns the end of the text that could still turn out to be a stop string.

    The match that completes first wins, and of those the longest: this depends on the text alone,
    not on how tokens cut it into pieces.
    """

    def __init__(self, stops: tuple[str, ...], *, include: bool) -> None:
        if "" in stops:
            raise RequestError("a stop string is empty; remove it or give it a character")
        self._stops = stops
        self._include = include
        self._held = ""
        self._is_over = False

    def push(self, text: str) -> StopScan:
        """Add the text of one token, so that the caller knows at which token a match completed."""
        assert not self._is_over, "nothing follows a stop string"
        text = self._held + text
        ends = {stop: text.find(stop) + len(stop) for stop in self._stops if stop in text}
        if ends:
            matched = min(ends, key=lambda stop: (ends[stop], -len(stop)))
            self._held, self._is_over = "", True
            end = ends[matched] if self._include else ends[matched] - len(matched)
            return StopScan(text=text[:end], matched=matched)
        shown = len(text) - max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[shown:]
        return StopScan(text=text[:shown], matched="")

    def finish(self) -> str:
        """Release what was held back: no stop string came of it."""
        held, self._held, self._is_over = self._held, "", True
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`, short of all of it."""
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(stop[:length])), 0)
