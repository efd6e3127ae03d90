"""What a round of each rung emits: measured, or estimated from the rungs that were used."""

import math
from collections.abc import Sequence

from outrider.engine.adaptive.accept_rate import USUAL_RATE, accept_rate_of, emitted_at
from outrider.engine.adaptive.recent_samples import MovingMean
from outrider.wire.draft_budget import Rung

_EXPECTED_ROUNDS = 16  # that an estimate from another rung counts for
_SHARING_GAIN = 1.04  # of tokens a round: measured 3 to 6% (docs/lab/log.md)


class RungGains:
    """Owns the tokens that a round emits per row, by rung, over batches of all sizes."""

    def __init__(self, ladder: Sequence[Rung]) -> None:
        self._ladder = ladder
        self._means = [MovingMean() for _ in ladder]

    @property
    def are_known(self) -> bool:
        """Whether a round has drafted."""
        return any(mean.num for mean in self._means[1:])

    def note(self, rung: int, emitted: float, *, num_rows: int) -> None:
        """So many rows emitted so many tokens each on average."""
        self._means[rung].note(emitted, num_rows)

    def fade(self, rung: int) -> None:
        """Let the next rounds count more than the old ones: the text may have changed."""
        self._means[rung].fade()

    def usual(self, chosen: int, rung: int) -> float:
        """Tokens that a round of a rung emits. The chosen rung helps to estimate it while the rung
        itself has few samples.
        """
        own = self._means[rung]
        if rung == 0:
            return 1.0
        if chosen in (0, rung) and own.num:
            return own.value
        expected = self._expected(chosen, rung)
        return (own.value * own.num + expected * _EXPECTED_ROUNDS) / (own.num + _EXPECTED_ROUNDS)

    def _expected(self, chosen: int, rung: int) -> float:
        """What a rung should emit by the rate at which the chosen one's drafts are accepted, or
        those of the rung with most samples.
        """
        known = max(range(len(self._means)), key=lambda each: self._means[each].num * (each > 0))
        source = chosen if chosen and self._means[chosen].num else known
        rate, mean, most = USUAL_RATE, self._means[source], self._ladder[source].most_emitted
        if source and mean.num:
            rate = accept_rate_of(mean.value / self._sharing(source), most)
        return self._sharing(rung) * emitted_at(rate, self._ladder[rung].most_emitted)

    def _sharing(self, rung: int) -> float:
        return _SHARING_GAIN if self._ladder[rung].is_shared else 1.0

    def most(self, rung: int, chosen: int = 0) -> float:
        """What a round can emit: deeper drafts are accepted at most as often as those measured, by
        the chosen rung if it drafts.
        """
        most = self._ladder[rung].most_emitted
        known = [each for each in range(1, (chosen or rung) + 1) if self._means[each].num]
        if not known or rung == 0:
            return float(most)
        mean, steps = self._means[known[-1]], self._ladder[known[-1]].most_emitted - 1
        return min(1 + (mean.value - 1 + 1 / mean.num) * (most - 1) / steps, most)

    def likely(self, rung: int) -> float:
        """What a round of a rung emits at most, two standard errors above its mean."""
        mean, most = self._means[rung], self._ladder[rung].most_emitted
        if rung == 0 or not mean.num:
            return float(most)
        variance = (most - 1) * max(mean.value - 1, 1 / mean.num)
        return min(mean.value + 2 * math.sqrt(variance / mean.num), most)
