"""Which rung is tried next, if any."""

import math
from collections.abc import Sequence

from outrider.engine.adaptive.batch_size import BatchSize
from outrider.engine.adaptive.judge_trial import FREE_SHARE
from outrider.engine.adaptive.rung_estimates import LEAST_GAIN, RungEstimates
from outrider.engine.adaptive.trial import FIRST_STEPS, IMPOSSIBLE
from outrider.engine.adaptive.trial_credit import TrialCredit, kind_of
from outrider.wire.draft_budget import Rung

_MOST_GUESSED = 32  # steps of drafts before plain ones are measured, whatever dummy runs said


class NextTrial:
    """Reads what was measured, and what trials may still cost."""

    def __init__(
        self, ladder: Sequence[Rung], estimates: RungEstimates, credit: TrialCredit
    ) -> None:
        self._ladder, self._estimates, self._credit = ladder, estimates, credit

    def begin(self, size: BatchSize) -> None:
        """Begin the trial that is due and promises most, if there is one."""
        if not size.looks_for_trial() or size.num_steps < self._num_first(size):
            return
        due = self._due(size)
        promises = {
            rung: self._promise(size, rung) for rung in due if not self._short_s(size, rung)
        }
        tried = max(promises, key=promises.__getitem__, default=None)
        if tried is None or promises[tried] < 0:
            size.rest([self._steps_until_paid(size, rung) for rung in due])
            return
        nodes = self._ladder[tried].nodes / self._ladder[size.chosen].nodes
        most_s = IMPOSSIBLE * max(nodes, 1.0) * size.costs[size.chosen].usual
        size.begin_trial(tried, most_s=most_s)

    def _num_first(self, size: BatchSize) -> int:
        """Steps before the first trial of a size. Dummy runs have shown what plain ones cost."""
        if self._estimates.are_measured(size) and size.chosen == 0:
            return 1
        return max(FIRST_STEPS, self._estimates.num_trial_steps(size, size.chosen))

    def _due(self, size: BatchSize) -> list[int]:
        """Rungs whose trial may begin now, if there is time for it."""
        return [
            rung
            for rung in self._estimates.open_rungs(size.num_rows)
            if rung != size.chosen and size.is_due(rung) and self._is_possible(size, rung)
        ]

    def _is_possible(self, size: BatchSize, rung: int) -> bool:
        """The first drafts of a text are few, and sharing is tried late."""
        if self._ladder[rung].is_shared:
            return size.is_settled and self._estimates.is_other_form(size, rung)
        return rung <= 1 or self._estimates.are_gains_known or self._estimates.is_cheap(size, rung)

    def _promise(self, size: BatchSize, rung: int) -> float:
        """The most that a rung can gain; negative if that is too little.

        Plain decoding is tried when it is due, and so is the smallest rung of drafts while plain
        decoding is chosen: the text may have changed. Other rungs must promise a gain.
        """
        is_next = rung == 0 or rung == size.chosen + 1 == 1
        is_measured = (
            size.chosen > 0 or size.costs[1].is_known or self._estimates.are_measured(size)
        )
        promise = self._estimates.promise(size, rung) if is_next or is_measured else 0.0
        if is_next or promise >= LEAST_GAIN:
            return promise
        size.postpone(rung)
        return -1.0

    def _steps_until_paid(self, size: BatchSize, rung: int) -> float:
        """Steps after which trials may cost as much as one of this rung, at the earliest."""
        kind = kind_of(tried=rung, chosen=size.chosen)
        earned_s = self._credit.earned_s(kind, size.costs[size.chosen].usual)
        steps = self._short_s(size, rung) / earned_s
        if rung == 0 and not size.costs[0].is_known:
            steps = min(steps, _MOST_GUESSED - size.num_steps)
        return max(steps, 1.0)

    def _short_s(self, size: BatchSize, rung: int) -> float:
        """What the time that trials may cost lacks for one more of this rung; 0 if nothing."""
        if 0 < rung < size.chosen:
            return 0.0
        kind = kind_of(tried=rung, chosen=size.chosen)
        return max(self._needed_s(size, rung) - self._credit.left_s(kind), 0.0)

    def _needed_s(self, size: BatchSize, rung: int) -> float:
        """What trials may still cost when one of this rung begins. One of more drafts than the
        chosen ones waits only until earlier ones are paid.
        """
        if size.chosen == 0:
            return self._drafts_loss_s(size, rung)
        return self._plain_loss_s(size) if rung == 0 else 0.0

    def _plain_loss_s(self, size: BatchSize) -> float:
        """What a trial of plain decoding costs, as far as is known."""
        plain_s = self._estimates.expected_s(size, 0)
        is_late = not size.costs[0].is_known and size.num_steps >= _MOST_GUESSED
        if not plain_s or is_late:
            return -math.inf
        lost_s = plain_s - 1 / self._estimates.chosen_rate(size)
        return lost_s * self._estimates.num_trial_steps(size, 0)

    def _drafts_loss_s(self, size: BatchSize, rung: int) -> float:
        """What a trial of drafts costs that do not pay: it takes about half of its steps to show
        that. Drafts that are free cost nothing.
        """
        plain_s, cost, estimates = size.costs[0].usual, size.costs[rung], self._estimates
        drafts_s = estimates.drafts_s(size.rows.value, rung, plain_s)
        loss_s = cost.usual - plain_s if cost.is_known else drafts_s
        is_free = loss_s <= FREE_SHARE * plain_s
        if estimates.are_measured(size) and not cost.is_known:
            is_free = estimates.is_promising(size, rung)
        return 0.0 if is_free else loss_s * estimates.num_trial_steps(size, rung) / 2
