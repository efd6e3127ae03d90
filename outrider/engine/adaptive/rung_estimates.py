"""What each rung of a ladder should emit and take, for a number of rows."""

import math
from collections.abc import Sequence

from outrider.engine.adaptive.batch_size import BatchSize
from outrider.engine.adaptive.beside_prompts import RungValue
from outrider.engine.adaptive.cost_curve import CostCurve
from outrider.engine.adaptive.rung_gains import RungGains
from outrider.engine.adaptive.rung_prices import RungPrices
from outrider.engine.adaptive.trial import TRIAL_ROUNDS
from outrider.wire.draft_budget import FEWEST_SHARING, Rung

LEAST_GAIN = 1.03  # a smaller gain is not worth new shapes
_FREE_TOKENS = 8  # query tokens that a step reads at about the price of one, on most machines
_WORTH_STARTING = 1.5  # gain from which a small batch begins with drafts
_SHARING_HOPE = 1.1  # what sharing may gain if texts differ, before it is tried
_TRIAL_STEPS = 3  # of a trial at least
_FORM_ROUNDS = 16  # times the rounds of a trial: sharing gains little


class RungEstimates:
    """Reads what was measured: seconds by number of rows, the cost curve, dummy runs, gains."""

    def __init__(
        self, ladder: Sequence[Rung], prices: RungPrices, curve: CostCurve, gains: RungGains
    ) -> None:
        self._ladder, self._prices = ladder, prices
        self._curve, self._gains = curve, gains

    def are_measured(self, size: BatchSize) -> bool:
        """Whether dummy runs told what drafts cost."""
        return self._prices.are_measured(size.num_rows)

    def has_prompt_price(self, num_rows: int) -> bool:
        """Whether prompts alone tell what drafts cost."""
        return not self._prices.are_measured(num_rows) and self._prices.query_token_s > 0

    @property
    def are_gains_known(self) -> bool:
        """Whether a round has drafted."""
        return self._gains.are_known

    @property
    def most_gain(self) -> float:
        """The most that a round of any rung can emit, as far as is known."""
        return max(map(self._gains.most, range(len(self._ladder))))

    def open_rungs(self, num_rows: int) -> list[int]:
        """Those that so many rows can use: few rows do not share drafts."""
        is_few = num_rows < FEWEST_SHARING
        return [rung for rung, each in enumerate(self._ladder) if not (is_few and each.is_shared)]

    def rungs_up_to(self, chosen: int) -> list[int]:
        """Rungs of drafts up to the chosen one. Only a trial tells what sharing gains, so another
        form that shares is none of them.
        """
        numbers = range(1, chosen + 1)
        return [rung for rung in numbers if rung == chosen or not self._ladder[rung].is_shared]

    def first_rung(self, num_rows: int) -> int:
        """The rung of rows about which nothing is known: by dummy runs and what rounds emitted for
        other rows, else drafts that should be free, or none.
        """
        rungs = [rung for rung, each in enumerate(self._ladder) if rung and not each.is_shared]
        if self._gains.are_known and self._prices.are_measured(num_rows):
            gains = {rung: self._gains.usual(0, rung) for rung in rungs}
            return self._prices.choose_best(self._ladder, gains, num_rows, least_gain=LEAST_GAIN)
        free = [
            rung
            for rung in rungs
            if num_rows * self._ladder[rung].nodes <= _FREE_TOKENS
            and self._gains.most(rung) > _WORTH_STARTING
        ]
        return self._prices.choose_first(self._ladder, free, num_rows)

    def values(
        self, size: BatchSize, rungs: Sequence[int], *, is_hopeful: bool = False
    ) -> list[RungValue]:
        """What these rungs emit and take, plain decoding first; with hope all drafts are accepted:
        what was measured may be out of date.
        """
        return [self._value(size, rung, is_hopeful=is_hopeful) for rung in (0, *rungs)]

    def _value(self, size: BatchSize, rung: int, *, is_hopeful: bool) -> RungValue:
        own = self._ladder[rung]
        emitted = own.most_emitted if is_hopeful else self._gains.usual(size.chosen, rung)
        return RungValue(
            rung=rung, nodes=own.nodes, emitted=emitted, seconds=self.expected_s(size, rung)
        )

    def promise(self, size: BatchSize, rung: int) -> float:
        """The most that a rung can gain over the chosen one, as far as is known."""
        if self.is_other_form(size, rung):
            return _SHARING_HOPE
        seconds = self.expected_s(size, rung)
        if not seconds:
            return math.inf
        gains, is_below = self._gains, rung < size.chosen
        gain = gains.usual(size.chosen, rung) if is_below else gains.most(rung, size.chosen)
        return gain / seconds / self.chosen_rate(size)

    def likely_gain(self, rung: int) -> float:
        """What a round of a rung emits at most, by what it emitted."""
        return self._gains.likely(rung)

    def num_trial_steps(self, size: BatchSize, rung: int) -> int:
        """Samples of a trial. The gain of drafts varies more than the cost of a step, and that of
        sharing is small.
        """
        rounds = TRIAL_ROUNDS if rung else 0
        if self.is_other_form(size, rung):
            rounds *= _FORM_ROUNDS
        return max(_TRIAL_STEPS, math.ceil(rounds / max(size.rows.value, 1.0)))

    def expected_s(self, size: BatchSize, rung: int) -> float:
        """Seconds of a rung without prompts, measured or estimated; 0 where nothing is known."""
        seconds = self._prices.expected_s(size, self._ladder, rung)
        if seconds:
            return seconds
        # Rows of this number have not run.
        rows, drafts = size.num_rows, self._ladder[rung].drafts
        if self._prices.are_measured(rows):
            return self._curve.seconds(rows) * self._prices.times_plain(rows, drafts)
        return self._curve.seconds(rows * (1 + drafts))

    def rate(self, size: BatchSize, rung: int, seconds: float) -> float:
        """Tokens per second and row."""
        return self._gains.usual(size.chosen, rung) / seconds

    def chosen_rate(self, size: BatchSize) -> float:
        return self.rate(size, size.chosen, size.costs[size.chosen].usual)

    def drafts_s(self, num_rows: float, rung: int, plain_s: float) -> float:
        """Seconds that the drafts of a rung should add to a plain step."""
        return self._prices.drafts_s(num_rows, self._ladder[rung].drafts, plain_s=plain_s)

    def can_pay(self, num_rows: int) -> bool:
        """Whether a rung may gain with the easiest text, by dummy runs."""
        return self._prices.can_pay(self._ladder, num_rows, least_gain=LEAST_GAIN)

    def is_promising(self, size: BatchSize, rung: int) -> bool:
        """Whether the drafts of a rung pay well by dummy runs if they are accepted as usual."""
        return self._prices.are_promising(self._ladder[rung], size.num_rows)

    def is_cheap(self, size: BatchSize, rung: int) -> bool:
        """Whether drafts of a rung cost no more than the first ones of a text may: the smallest
        rung shows how often drafts are accepted.
        """
        prices = self._prices
        is_measured = prices.are_measured(size.num_rows)
        return not is_measured or prices.is_cheap(self._ladder[rung], size.num_rows)

    def is_other_form(self, size: BatchSize, rung: int) -> bool:
        """Whether a rung differs from the chosen one only in how rows share their drafts."""
        return rung != size.chosen and self._ladder[rung].drafts == self._ladder[size.chosen].drafts
