"""What drafts should cost, before steps with drafts tell.

Dummy runs at start measure it. Where there were none, a draft costs as much as a prompt token.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from outrider.engine.adaptive.accept_rate import USUAL_RATE, emitted_at
from outrider.engine.adaptive.batch_size import BatchSize
from outrider.engine.adaptive.recent_samples import UsualSeconds
from outrider.wire.draft_budget import Rung
from outrider.wire.runner_facts import RungCost

_LEAST_READ = 16  # of a step of prompts alone: mostly tokens, or they are free
_BEST_RATE = 0.95  # of a text that is easy for the head
_WORTH_TRYING = 1.08  # gain at the usual rate: a hard text then loses little in the first steps
_CHEAP = 1.3  # times a plain step: larger trees that cost more come after smaller ones
_MOST_EACH = 2.0  # plain steps that a query token can cost; more was a stall of a dummy run


class RungPrices:
    """Owns the costs of dummy runs, and those of prompt tokens.

    Dummy runs are stored as ratios of plain steps with as many rows. Real steps also read KV and
    serve the host, which makes all of them slower.
    """

    def __init__(self, costs: Iterable[RungCost] = ()) -> None:
        # Of a query token in a step of prompts alone: more than one more token costs beside rows.
        self._most_token_s = UsualSeconds()
        seconds: defaultdict[int, dict[int, float]] = defaultdict(dict)
        for cost in costs:
            seconds[cost.rows][cost.drafts] = cost.seconds
        # By rows: (drafts, ratio), ascending.
        self._ratios = {
            rows: [(drafts, found[drafts] / found[0]) for drafts in sorted(found)]
            for rows, found in seconds.items()
            if len(found) > 1
        }
        self._most_measured = max(self._ratios, default=0).bit_length()  # octave of rows

    def are_measured(self, num_rows: int) -> bool:
        """Whether dummy runs told what drafts cost beside so many rows. A slow machine has run few
        rows alone, and drafts that are free beside one row are dear beside many.
        """
        return num_rows.bit_length() <= self._most_measured

    @property
    def query_token_s(self) -> float:
        """Seconds of one more query token, by those of prompts; 0 where nothing is known."""
        return self._most_token_s.usual if self._most_token_s.is_known else 0.0

    def note_prompts(self, seconds: float, *, num_prompt: int) -> None:
        """A step of prompts alone took so long."""
        if num_prompt >= _LEAST_READ:
            self._most_token_s.note(seconds / num_prompt)

    def drafts_s(self, num_rows: float, drafts: int, *, plain_s: float) -> float:
        """Seconds that so many drafts of each row add to a plain step; 0: nothing is known."""
        if self.are_measured(round(num_rows)):
            return (self.times_plain(round(num_rows), drafts) - 1) * plain_s
        return self.query_token_s * num_rows * drafts

    def expected_s(self, size: BatchSize, ladder: Sequence[Rung], rung: int) -> float:
        """Seconds of a rung: measured, on the line through plain decoding and the largest measured
        rung below, or by dummy runs. It is 0 where nothing is known.
        """
        known = [each for each, cost in enumerate(size.costs) if cost.is_known]
        below = [each for each in known if each <= rung]
        is_measured = self.are_measured(size.num_rows)
        if not known or not (below or is_measured):
            return 0.0
        last, plain = below[-1] if below else known[0], size.costs[0]
        seconds = size.costs[last].usual
        if last == rung:
            return seconds
        if last and plain.is_known:
            each = max(seconds - plain.usual, 0.0) / (ladder[last].nodes - 1)
            return seconds + each * (ladder[rung].nodes - ladder[last].nodes)
        if is_measured:
            times = [self.times_plain(size.num_rows, ladder[each].drafts) for each in (rung, last)]
            seconds *= times[0] / times[1]
        return seconds

    def times_plain(self, num_rows: int, drafts: int) -> float:
        """Seconds of a step with so many drafts a row, over those of a plain step.

        By the measured number of rows that is nearest in octaves, on the line between the measured
        numbers of drafts on both sides.
        """
        octave = num_rows.bit_length()
        nearest = min(self._ratios, key=lambda rows: (abs(rows.bit_length() - octave), rows))
        points = self._ratios[nearest]
        after = min(max(bisect_left(points, (drafts, 0.0)), 1), len(points) - 1)
        (fewer, low), (more, high) = points[after - 1], points[after]
        ratio = low + (high - low) / (more - fewer) * (drafts - fewer)
        return min(max(ratio, 1.0), _MOST_EACH * (1 + drafts))

    def choose_first(self, ladder: Sequence[Rung], free: Sequence[int], num_rows: int) -> int:
        """The rung of these that a batch begins with, or plain decoding: the largest cheap one,
        else the smallest, which shows at the least cost how often drafts are accepted.
        """
        if not self.are_measured(num_rows):
            return max(free, default=0)
        good = [rung for rung in free if self.are_promising(ladder[rung], num_rows)]
        cheap = (rung for rung in good if self.is_cheap(ladder[rung], num_rows))
        return max(cheap, default=min(good, default=0))

    def is_cheap(self, rung: Rung, num_rows: int) -> bool:
        """Whether a rung costs little more than plain decoding."""
        return self.times_plain(num_rows, rung.drafts) <= _CHEAP

    def choose_best(
        self,
        ladder: Sequence[Rung],
        gains: Mapping[int, float],
        num_rows: int,
        *,
        least_gain: float,
    ) -> int:
        """The rung that emits most in the time of a plain step, by what rounds emit; or plain
        decoding, unless another one gains more than this.
        """
        rates = {
            rung: gain / self.times_plain(num_rows, ladder[rung].drafts)
            for rung, gain in gains.items()
        }
        best = max(rates, key=rates.__getitem__)
        return best if rates[best] > least_gain else 0

    def are_promising(self, rung: Rung, num_rows: int) -> bool:
        """Whether the drafts of a rung pay well if they are accepted as often as usual."""
        emitted = emitted_at(USUAL_RATE, rung.most_emitted)
        return emitted >= _WORTH_TRYING * self.times_plain(num_rows, rung.drafts)

    def can_pay(self, ladder: Sequence[Rung], num_rows: int, *, least_gain: float) -> bool:
        """Whether a rung may gain so much with the easiest text."""
        return not self.are_measured(num_rows) or any(
            emitted_at(_BEST_RATE, rung.most_emitted)
            > least_gain * self.times_plain(num_rows, rung.drafts)
            for rung in ladder[1:]
        )
