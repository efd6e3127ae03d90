"""What a step costs by its query tokens, without drafting: measured, and followed while it changes.

A step reads its weights once, so the first tokens are almost free and later ones cost time each.
Where that changes depends on machine and model.
"""

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable
from operator import itemgetter

_REMEMBERED = 8  # steps of a half octave
_NEAR = 1.25  # times the tokens: how far on both sides the price of one more token is read


_Point = tuple[float, float]  # query tokens, seconds


class _Samples:
    """The last steps of a half octave, and the one of them that stands for it."""

    def __init__(self) -> None:
        self._last: deque[_Point] = deque(maxlen=_REMEMBERED)

    def note(self, num_tokens: int, seconds: float) -> None:
        self._last.append((float(num_tokens), seconds))

    @property
    def usual(self) -> _Point:
        """The lower quartile by seconds, which slow steps do not move."""
        return sorted(self._last, key=itemgetter(1))[(len(self._last) - 1) // 4]


class _Line:
    """Points connected by straight lines. More tokens never take less time.

    A point above a later one was slowed by something else: no step takes less time for more tokens.
    """

    def __init__(self, points: Iterable[_Point] = ()) -> None:
        ascending = sorted(points)
        least = float("inf")
        for place in reversed(range(len(ascending))):
            tokens, seconds = ascending[place]
            least = min(least, seconds)
            ascending[place] = tokens, least
        self._tokens = [tokens for tokens, _ in ascending]
        self._seconds = [seconds for _, seconds in ascending]

    def seconds(self, num_tokens: float) -> float:
        """Before the first point tokens are free. Beyond the last one, every token costs as much as
        those of that point do on average: no token can cost more. 0 where nothing is known.
        """
        tokens, seconds = self._tokens, self._seconds
        if not tokens:
            return 0.0
        after = bisect_left(tokens, num_tokens)
        if after == 0:
            return seconds[0]
        if after == len(tokens):
            return seconds[-1] * num_tokens / tokens[-1]
        share = (num_tokens - tokens[after - 1]) / (tokens[after] - tokens[after - 1])
        return seconds[after - 1] + share * (seconds[after] - seconds[after - 1])


class CostCurve:
    """Owns the seconds of steps that verify no drafts, by query tokens in half octaves.

    Dummy runs give its first points. They are scaled by what real steps take, which also read KV.
    """

    def __init__(self, dummy_runs: Iterable[tuple[int, float]] = ()) -> None:
        dummy = {_half_octave(tokens): (tokens, seconds) for tokens, seconds in dummy_runs}
        self._dummy, self._dummy_line = dummy, _Line(dummy.values())
        self._seen: defaultdict[int, _Samples] = defaultdict(_Samples)
        self._most: defaultdict[int, _Samples] = defaultdict(_Samples)  # of steps with drafts
        self._scale = 1.0  # of dummy runs
        self._line: _Line | None = None  # drawn when it is read: most steps only teach

    def note(self, seconds: float, *, num_tokens: int) -> None:
        """A step of so many query tokens took so long."""
        place = _half_octave(num_tokens)
        self._seen[place].note(num_tokens, seconds)
        if place in self._dummy:
            tokens, usual_s = self._seen[place].usual
            self._scale = usual_s / self._dummy_line.seconds(tokens)
        self._line = None

    def note_drafted(self, seconds: float, *, num_tokens: int) -> None:
        """A step with drafts took so long: its query tokens alone take no longer."""
        place = _half_octave(num_tokens)
        if place not in self._seen:
            self._most[place].note(num_tokens, seconds)
            self._line = None

    def seconds(self, num_tokens: float) -> float:
        """Seconds of a step of so many query tokens; 0 where nothing is known."""
        if self._line is None:
            self._line = self._draw()
        return self._line.seconds(num_tokens)

    def added_s(self, num_tokens: float, *, beside: float) -> float:
        """Seconds that so many tokens add to a step of `beside` tokens."""
        return self.seconds(beside + num_tokens) - self.seconds(beside) if num_tokens else 0.0

    def token_s(self, at: float) -> float:
        """Seconds of one more token in steps of about so many."""
        first, last = at / _NEAR, at * _NEAR
        return (self.seconds(last) - self.seconds(first)) / (last - first)

    def _draw(self) -> _Line:
        """Points of steps with drafts count where they are below the others."""
        points = {
            place: (float(tokens), self._scale * seconds)
            for place, (tokens, seconds) in self._dummy.items()
        }
        points |= {place: seen.usual for place, seen in self._seen.items()}
        line = _Line(points.values())
        most = {place: each.usual for place, each in self._most.items() if place not in self._seen}
        lower = {
            place: (tokens, seconds)
            for place, (tokens, seconds) in most.items()
            if not 0 < line.seconds(tokens) <= seconds
        }
        return _Line((points | lower).values()) if lower else line


def _half_octave(num_tokens: int) -> int:
    """The number of its bits, and whether it is nearer to the end of them."""
    bits = num_tokens.bit_length()
    return 2 * bits + (num_tokens >> max(bits - 2, 0) & 1 if bits > 1 else 0)
