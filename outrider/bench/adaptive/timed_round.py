"""Records of `outrider bench adaptive`, and the ratios computed from them."""

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from outrider.bench.churn.churn_run import ChurnTokens

PLAIN = "plain"
ADAPTIVE = "adaptive"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTime:
    """How long a round took."""

    seconds: float
    cpu_s: float  # of all threads


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRound:
    """As many requests as there are rows, answered at a time in one way."""

    way: str
    start: int  # which of the fresh engines
    number: int  # of the round; 0 is the first of the engine
    time: RoundTime
    tokens: ChurnTokens
    answers: tuple[tuple[int, ...], ...]  # token ids, in the order of the requests


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveCell:
    """All rounds with one number of rows and one kind of text."""

    rows: int
    text: str
    temperature: float
    rounds: tuple[TimedRound, ...]

    @property
    def first(self) -> float:
        """Speed of adaptive drafting over plain decoding in the first rounds of engines."""
        return statistics.mean(self.ratios(is_first=True))

    @property
    def later(self) -> float | None:
        """The same in all other rounds."""
        ratios = self.ratios(is_first=False)
        return statistics.mean(ratios) if ratios else None

    @property
    def cpu(self) -> float:
        """The same in all rounds, by the time of processors: other processes disturb it less."""
        return _mean_cpu(self._of(PLAIN)) / _mean_cpu(self._of(ADAPTIVE))

    @property
    def best_way(self) -> str:
        """The fastest way but adaptive drafting, over all rounds."""
        others = {each.way for each in self.rounds} - {ADAPTIVE}
        return min(others, key=self.seconds)

    @property
    def to_best(self) -> float:
        """Speed of adaptive drafting over that of the best way."""
        return self.seconds(self.best_way) / self.seconds(ADAPTIVE)

    @property
    def most_emitted(self) -> float:
        """Tokens that a round of verification emits in the way that accepts the most drafts."""
        return max(map(self._per_round, {each.way for each in self.rounds}))

    @property
    def num_different(self) -> int:
        """Answers that are not those of plain decoding; anything but 0 is a bug or a tie."""
        right = {(each.start, each.number): each.answers for each in self._of(PLAIN)}
        return sum(
            answer != plain
            for each in self.rounds
            for answer, plain in zip(each.answers, right[each.start, each.number], strict=True)
        )

    def seconds(self, way: str) -> float:
        """Mean seconds of a round."""
        return statistics.mean(each.time.seconds for each in self._of(way))

    def ratios(self, *, is_first: bool) -> list[float]:
        """Plain seconds over adaptive seconds of the same round, in the order of rounds."""
        plain = {(each.start, each.number): each.time.seconds for each in self._of(PLAIN)}
        return [
            plain[each.start, each.number] / each.time.seconds
            for each in self._of(ADAPTIVE)
            if (each.number == 0) is is_first
        ]

    def _per_round(self, way: str) -> float:
        return statistics.mean(each.tokens.per_round for each in self._of(way))

    def _of(self, way: str) -> Iterator[TimedRound]:
        return (each for each in self.rounds if each.way == way)


def _mean_cpu(rounds: Iterable[TimedRound]) -> float:
    return max(statistics.mean(each.time.cpu_s for each in rounds), 1e-9)
