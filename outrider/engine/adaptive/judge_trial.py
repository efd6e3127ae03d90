"""When a trial has shown enough, and what."""

from collections.abc import Sequence

from outrider.engine.adaptive.batch_size import BatchSize
from outrider.engine.adaptive.rung_estimates import LEAST_GAIN, RungEstimates
from outrider.engine.adaptive.trial import LONGEST_TRIAL, Trial, Verdict, could_pay
from outrider.engine.adaptive.trial_credit import TrialCredit, TrialKind
from outrider.wire.draft_budget import Rung

FREE_SHARE = 0.5  # of a plain step: what drafts may add to it at most and still be called free
_SHARING_GAIN = 1.03  # of sharing, over the same number of drafts for every row
_PLAIN_GAIN = 0.98  # plain decoding is chosen unless drafts gain more than the rest
_FAR_SLOWER = 0.8  # of the chosen rate: what one step confirms at once
_MOST_SLOW = 2  # steps that end a trial of drafts
_MOST_UNEXPLAINED = 2.0  # times the price: a prompt token costs less than one of many short rows


class TrialJudge:
    """Reads what was measured."""

    def __init__(
        self, ladder: Sequence[Rung], estimates: RungEstimates, credit: TrialCredit
    ) -> None:
        self._ladder, self._estimates, self._credit = ladder, estimates, credit

    def judge(self, size: BatchSize, trial: Trial) -> Verdict:
        """OPEN until the trial has enough samples, or is hopeless, or took too long."""
        num_wanted = self._estimates.num_trial_steps(size, trial.rung)
        is_complete = trial.num_samples >= num_wanted
        is_new = size.num_steps - trial.since < max(LONGEST_TRIAL, 2 * num_wanted)
        if is_new and not is_complete and not self._is_hopeless(size, trial):
            return Verdict.OPEN
        if not size.is_known or not trial.num_samples + trial.num_slow:
            return Verdict.UNMEASURED
        rate = self._estimates.rate(size, trial.rung, trial.seconds.usual)
        chosen_rate = self._estimates.chosen_rate(size)
        if is_complete and rate > self._least_gain(size, trial.rung) * chosen_rate:
            return Verdict.ADOPTED
        if not self._is_usual(size, trial):
            return Verdict.LOST if is_complete else Verdict.CUT_SHORT
        if not could_pay(self._ladder, trial, size.costs[0].usual):
            return Verdict.NEVER_PAYS
        return Verdict.LOST_CLEARLY if rate < _FAR_SLOWER * chosen_rate else Verdict.LOST

    def is_complete(self, size: BatchSize, trial: Trial) -> bool:
        return trial.num_samples >= self._estimates.num_trial_steps(size, trial.rung)

    def _is_hopeless(self, size: BatchSize, trial: Trial) -> bool:
        """Whether more steps would cost more than they can gain."""
        return (
            self._cannot_gain(size, trial)
            or trial.num_slow >= _MOST_SLOW
            or self._is_unpaid(size, trial)
            or self._is_far_slower(size, trial)
        )

    def _cannot_gain(self, size: BatchSize, trial: Trial) -> bool:
        """Whether more drafts would not pay if as many were accepted as may well be."""
        if trial.rung <= size.chosen or not trial.num_samples:
            return False
        most = self._estimates.likely_gain(trial.rung) / trial.seconds.usual
        return most < self._estimates.chosen_rate(size)

    def _is_unpaid(self, size: BatchSize, trial: Trial) -> bool:
        """Whether a trial of drafts that are not free lost more than trials may."""
        if size.chosen or not trial.num_samples or self._credit.left_s(TrialKind.DRAFTS) >= 0:
            return False
        return trial.seconds.usual > (1 + FREE_SHARE) * size.costs[0].usual

    def _is_far_slower(self, size: BatchSize, trial: Trial) -> bool:
        """Whether one plain step has shown again what is known: that drafts are far faster."""
        known, seen = size.costs[0], trial.seconds
        if trial.rung or not (known.is_known and seen.is_known and size.is_known):
            return False
        return 1 / min(known.usual, seen.usual) < _FAR_SLOWER * self._estimates.chosen_rate(size)

    def _is_usual(self, size: BatchSize, trial: Trial) -> bool:
        """Whether known prices explain what drafts cost more than plain decoding."""
        plain_s = size.costs[0].usual
        drafts_s = self._estimates.drafts_s(size.rows.value, trial.rung, plain_s)
        is_from_plain = size.chosen == 0 and trial.num_samples > 0 and drafts_s > 0
        return is_from_plain and trial.seconds.usual < _MOST_UNEXPLAINED * (plain_s + drafts_s)

    def _least_gain(self, size: BatchSize, rung: int) -> float:
        """How much faster than the chosen rung another one must have been."""
        if self._estimates.is_other_form(size, rung):
            return _SHARING_GAIN if self._ladder[rung].is_shared else 1.0
        return LEAST_GAIN if rung else _PLAIN_GAIN
