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


class CostCurve:
    """Owns the seconds of steps that verify no drafts, by query tokens in half octaves.

    Dummy runs give its first points. They are scaled by what real steps take, which also read KV.
    """

    def __init__(self, dummy_runs: Iterable[tuple[int, float]] = ()) -> None:
        self._dummy = {_half_octave(tokens): (tokens, seconds) for tokens, seconds in dummy_runs}
        self._seen: defaultdict[int, _Samples] = defaultdict(_Samples)
        self._most: defaultdict[int, _Samples] = defaultdict(_Samples)  # of steps with drafts
        self._scale = 1.0  # of dummy runs
        self._tokens: list[float] = []  # ascending, and so are their seconds
        self._seconds: list[float] = []
        self._draw()

    @property
    def is_known(self) -> bool:
        return bool(self._tokens)

    def note(self, seconds: float, *, num_tokens: int) -> None:
        """A step of so many query tokens took so long."""
        place = _half_octave(num_tokens)
        self._seen[place].note(num_tokens, seconds)
        if place in self._dummy:
            self._scale = self._seen[place].usual[1] / self._dummy[place][1]
        self._draw()

    def note_drafted(self, seconds: float, *, num_tokens: int) -> None:
        """A step with drafts took so long: its query tokens alone take no longer."""
        place = _half_octave(num_tokens)
        if place not in self._seen:
            self._most[place].note(num_tokens, seconds)
            self._draw()

    def seconds(self, num_tokens: float) -> float:
        """Seconds of a step of so many query tokens; 0 where nothing is known.

        Before the first point tokens are free. Beyond the last one, every token costs as much as
        those of that point do on average: no token can cost more.
        """
        if not self._tokens:
            return 0.0
        tokens, seconds = self._tokens, self._seconds
        after = bisect_left(tokens, num_tokens)
        if after == 0:
            return seconds[0]
        if after == len(tokens):
            return seconds[-1] * num_tokens / tokens[-1]
        share = (num_tokens - tokens[after - 1]) / (tokens[after] - tokens[after - 1])
        return seconds[after - 1] + share * (seconds[after] - seconds[after - 1])

    def added_s(self, num_tokens: float, *, beside: float) -> float:
        """Seconds that so many tokens add to a step of `beside` tokens."""
        return self.seconds(beside + num_tokens) - self.seconds(beside)

    def token_s(self, at: float) -> float:
        """Seconds of one more token in steps of about so many."""
        first, last = at / _NEAR, at * _NEAR
        return (self.seconds(last) - self.seconds(first)) / (last - first)

    def _draw(self) -> None:
        """Connect the points. Those of steps with drafts count where they are below the others."""
        points = {
            place: (float(tokens), self._scale * seconds)
            for place, (tokens, seconds) in self._dummy.items()
        }
        points |= {place: seen.usual for place, seen in self._seen.items()}
        self._connect(points.values())
        most = {place: each.usual for place, each in self._most.items() if place not in self._seen}
        lower = {
            place: (tokens, seconds)
            for place, (tokens, seconds) in most.items()
            if not 0 < self.seconds(tokens) <= seconds
        }
        if lower:
            self._connect((points | lower).values())

    def _connect(self, points: Iterable[_Point]) -> None:
        """More tokens never take less time."""
        self._tokens, self._seconds, most = [], [], 0.0
        for tokens, seconds in sorted(points):
            most = max(most, seconds)
            self._tokens.append(tokens)
            self._seconds.append(most)


def _half_octave(num_tokens: int) -> int:
    """The number of its bits, and whether it is nearer to the end of them."""
    bits = num_tokens.bit_length()
    return 2 * bits + (num_tokens >> max(bits - 2, 0) & 1 if bits > 1 else 0)
