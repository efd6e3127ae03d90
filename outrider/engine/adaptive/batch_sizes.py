"""The batch sizes that were met, by octaves of rows, and what a new one begins with."""

from collections.abc import Sequence

from outrider.engine.adaptive.batch_size import DRAFT_WAIT, BatchSize
from outrider.engine.adaptive.judge_trial import FREE_SHARE
from outrider.engine.adaptive.rung_estimates import RungEstimates
from outrider.engine.adaptive.trial import FIRST_STEPS
from outrider.wire.draft_budget import Rung

_FIRST_PLAIN = 2  # plain steps of a small batch that show whether drafts are free


class BatchSizes:
    """Owns them."""

    def __init__(self, ladder: Sequence[Rung], estimates: RungEstimates) -> None:
        self._ladder, self._estimates = ladder, estimates
        self._sizes: dict[int, BatchSize] = {}

    def of(self, num_rows: int) -> BatchSize:
        octave = num_rows.bit_length()
        if octave not in self._sizes:
            self._sizes[octave] = self._new(num_rows)
        return self._sizes[octave]

    def decide(self, size: BatchSize, num_rows: int) -> None:
        """After its first plain steps a small batch drafts if that is free by the price of a prompt
        token.
        """
        if not size.is_undecided or size.costs[0].num < _FIRST_PLAIN:
            return
        free, plain_s = self._estimates.first_rung(num_rows), size.costs[0].usual
        is_free = self._estimates.drafts_s(num_rows, free, plain_s) <= FREE_SHARE * plain_s
        size.begin_with(free if is_free else size.chosen)

    def _new(self, num_rows: int) -> BatchSize:
        free = self._estimates.first_rung(num_rows)
        is_undecided = free > 0 and self._estimates.has_prompt_price(num_rows)
        size = BatchSize(
            len(self._ladder),
            num_rows=num_rows,
            chosen=0 if is_undecided else free,
            first_trial=min(FIRST_STEPS / max(self._estimates.most_gain - 1, 1e-9), DRAFT_WAIT),
            is_undecided=is_undecided,
        )
        if not self._estimates.can_pay(num_rows):
            size.postpone_drafts()
        return size
