"""How far a batch drafts, from measured step times and measured acceptance.

Verifying drafts is free while a step is bound by reading weights, and costs time once there are
many query tokens. The border depends on the machine, the model, the number of rows, the prompt
tokens beside them and the text. So it is measured: a number of rows changes its rung (budget) only
after a trial of the other rung. What prompts beside the rows change is read off a cost curve.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.engine.beside_prompts import BesidePrompts
from outrider.engine.cost_curve import CostCurve
from outrider.engine.draft_trials import (
    DRAFT_WAIT,
    FIRST_STEPS,
    IMPOSSIBLE,
    LONGEST_TRIAL,
    PLAIN_WAIT,
    TRIAL_ROUNDS,
    BatchSize,
    Trial,
    could_pay,
)
from outrider.engine.rung_estimates import LEAST_GAIN, RungEstimates
from outrider.engine.rung_gains import RungGains
from outrider.engine.rung_prices import RungPrices
from outrider.engine.trial_credit import TrialCredit
from outrider.wire.draft_budget import Budget, Rung, ladder_of
from outrider.wire.runner_facts import RungCost

_FREE_SHARE = 0.5  # of a plain step: what drafts may add to it at most and still be called free
_FIRST_PLAIN = 2  # plain steps of a small batch that show whether drafts are free
_TRIAL_STEPS = 3
_MOST_SLOW = 2  # steps that end a trial of drafts
_MOST_UNEXPLAINED = 2.0  # times the price: a prompt token costs less than one of many short rows
_SHARING_GAIN = 1.03  # the same of sharing, which is the more complicated form of a rung
_FORM_ROUNDS = 16  # times the rounds of a trial: sharing gains little
_FAR_SLOWER = 0.8  # of the chosen rate: what a plain step confirms at once
_CLEAR_WAIT = 64.0  # steps after drafts were far slower than plain decoding
_PLAIN_GAIN = 0.98  # plain decoding is chosen unless drafts gain more than the rest
_MOST_GUESSED = 32  # steps of drafts before plain ones are measured, whatever dummy runs said
_FIRST_LOOKS = (16, 64, 256)  # steps with prompts that use drafts which looked too dear there
_MOSTLY = 0.5  # share of steps with prompts from which trials do not wait for steps without
_LEAST_SECONDS = 1e-9  # of a step that took no time by the clock


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A step in flight."""

    rung: int
    trial: Trial | None  # that the step belongs to
    num_rows: int
    num_prompt: int


class Adaptation:
    """Owns the measurements. Its ladder of budgets goes from plain decoding to the whole budget."""

    def __init__(
        self, budget: Budget, *, is_shared: bool = False, costs: Sequence[RungCost] = ()
    ) -> None:
        self.ladder = ladder_of(budget, is_shared=is_shared)
        self._curve = CostCurve((cost.rows, cost.seconds) for cost in costs if not cost.drafts)
        self._prices = RungPrices(costs)
        self._beside = BesidePrompts(self._curve)
        self._gains = RungGains(self.ladder)
        self._estimates = RungEstimates(self.ladder, self._prices, self._curve, self._gains)
        self._credit = TrialCredit()
        self._sizes: dict[int, BatchSize] = {}  # by octaves of rows
        # Of steps that are being scheduled: their rungs, and the trials that they belong to.
        self._rungs: dict[int, tuple[int, Trial | None]] = {}
        self._steps: dict[int, _Step] = {}  # of those in flight

    def choose(self, step: int, *, num_rows: int, num_prompt: int) -> Rung:
        size = self._size_of(num_rows)
        if size.is_undecided and size.costs[0].num >= _FIRST_PLAIN:
            self._begin(size, num_rows)
        if size.trial:
            self._judge(size, size.trial)
        elif size.is_known and size.num_steps >= self._num_first(size):
            self._try_another(size)
        trial = self._trial_of(size, num_rows, num_prompt)
        if trial:
            rung = trial.rung
        else:
            rung = self._choose_beside(size, num_rows, num_prompt) if num_prompt else size.chosen
        size.num_steps += 1
        self._rungs[step] = rung, trial
        return self.ladder[rung]

    def settle(self, step: int, *, num_rows: int, num_prompt: int) -> None:
        is_chosen = step in self._rungs
        rung, trial = self._rungs.pop(step, (0, None))
        if is_chosen if num_rows else num_prompt:  # an empty step has no result
            self._steps[step] = _Step(
                rung=rung, trial=trial, num_rows=num_rows, num_prompt=num_prompt
            )
        if trial and num_rows:
            trial.num_in_flight += 1

    def note(self, step: int, *, seconds: float, emitted_per_row: float) -> None:
        self._steps = {
            one: each for one, each in self._steps.items() if one >= step
        }  # earlier ones failed
        if step not in self._steps:
            return
        was = self._steps.pop(step)
        if not was.num_rows:
            self._prices.note_prompts(seconds, num_prompt=was.num_prompt)
            self._curve.note(seconds, num_tokens=was.num_prompt)
            return
        if was.trial:
            was.trial.num_in_flight -= 1
        size, num_tokens = self._size_of(was.num_rows), was.num_rows * self.ladder[was.rung].nodes
        prompt_s = self._curve.added_s(was.num_prompt, beside=num_tokens)
        alone_s = max(seconds - prompt_s, _LEAST_SECONDS)
        self._count_loss(size, was, seconds, emitted_per_row)
        note_step = self._curve.note_drafted if was.rung else self._curve.note
        note_step(seconds, num_tokens=num_tokens + was.num_prompt)
        size.note(was.rung, alone_s, num_rows=was.num_rows, num_prompt=was.num_prompt)
        self._gains.note(was.rung, emitted_per_row, num_rows=was.num_rows)

    @property
    def trial_credit_s(self) -> float:
        """Seconds that trials of drafts may still cost batches that decode plainly."""
        return self._credit.drafts_s

    def _count_loss(
        self, size: BatchSize, step: _Step, seconds: float, emitted_per_row: float
    ) -> None:
        """Add up what trials cost more than the chosen rung would have for as many tokens."""
        self._credit.spend(seconds)
        trial, plain = step.trial, size.costs[0]
        prompt_s = self._curve.added_s(step.num_prompt, beside=step.num_rows)
        if trial and not step.rung and size.is_known:
            seen_s = min(seconds - prompt_s, IMPOSSIBLE * size.costs[size.chosen].usual)
            self._credit.lose_to_plain(seen_s - 1 / self._estimates.chosen_rate(size))
        if trial and step.rung and size.chosen == 0 and plain.is_known:
            gained_s = (emitted_per_row - 1) * plain.usual
            lost_s = min(seconds - prompt_s, trial.most_s) - plain.usual - gained_s
            self._credit.lose_to_drafts(lost_s)

    def _trial_of(self, size: BatchSize, num_rows: int, num_prompt: int) -> Trial | None:
        """The trial that this step belongs to, if it does. Steps with prompts are for trials only
        where there are few others, and drafts could pay beside so many tokens.
        """
        trial = size.trial
        if trial is None:
            return None
        if num_prompt and size.prompt_share.value < _MOSTLY:
            return None
        if num_prompt and trial.rung and size.chosen == 0:
            values = self._estimates.values(size, (trial.rung,), is_hopeful=True)
            if not self._beside.choose(values, size, num_rows=num_rows, num_prompt=num_prompt):
                return None
        is_careful = trial.rung > size.chosen
        is_wanted = trial.wants_step(self._num_wanted(size, trial.rung), is_careful=is_careful)
        return trial if is_wanted else None

    def _choose_beside(self, size: BatchSize, num_rows: int, num_prompt: int) -> int:
        """The chosen rung, or a smaller one where prompts make drafts dearer than they are worth.

        Now and then the chosen one, at first more often: the curve may be wrong where no step has
        been, and an easier text would not be noticed.
        """
        if not size.chosen:
            return 0
        values = self._estimates.values(size, self._estimates.open_rungs(num_rows)[1:])
        if not all(each.seconds for each in values):
            return size.chosen
        rung = self._beside.choose(values, size, num_rows=num_rows, num_prompt=num_prompt)
        size.num_passed_over += not rung
        return rung if rung or not _is_round(size.num_passed_over) else size.chosen

    def _try_another(self, size: BatchSize) -> None:
        """Begin the trial that is due and promises most, if there is one.

        Plain decoding is tried when it is due, and so is the smallest rung of drafts while plain
        decoding is chosen: the text may have changed. Other rungs must promise a gain.
        """
        now, tried, most = size.num_steps, size.chosen, -1.0
        for rung in self._estimates.open_rungs(size.num_rows):
            if rung == size.chosen or now < size.due[rung] or not self._is_affordable(size, rung):
                continue
            if not self._gains.are_known and rung > 1 and self._estimates.is_dear(size, rung):
                continue
            is_late = self._estimates.is_other_form(size, rung) and size.is_settled
            if self.ladder[rung].is_shared and not is_late:
                continue
            is_next = rung == 0 or rung == size.chosen + 1 == 1
            is_measured = size.chosen > 0 or size.costs[1].is_known or self._prices.are_measured
            promise = self._estimates.promise(size, rung) if is_next or is_measured else 0.0
            if not is_next and promise < LEAST_GAIN:
                size.due[rung] = now + PLAIN_WAIT
            elif promise > most:
                tried, most = rung, promise
        if tried != size.chosen:
            self._gains.fade(tried)
            nodes = self.ladder[tried].nodes / self.ladder[size.chosen].nodes
            most_s = IMPOSSIBLE * max(nodes, 1.0) * size.costs[size.chosen].usual
            size.begin_trial(tried, most_s=most_s)

    def _is_affordable(self, size: BatchSize, rung: int) -> bool:
        """Whether the time that trials may cost has room for one more of this rung."""
        if size.chosen == 0:
            return self._credit.drafts_s >= self._needed_credit_s(size, rung)
        plain_s = self._estimates.expected_s(size, 0)
        is_due = not size.costs[0].is_known and size.num_steps >= _MOST_GUESSED
        if rung or not plain_s or is_due:
            return True
        lost_s = plain_s - 1 / self._estimates.chosen_rate(size)
        return self._credit.plain_s >= lost_s * self._num_wanted(size, 0)

    def _needed_credit_s(self, size: BatchSize, rung: int) -> float:
        """What trials of drafts may still cost when one of this rung begins.

        Where drafts do not pay, a trial takes about half of its steps to show that. So drafts that
        are not free are tried when there is time for these.
        """
        plain_s, cost, prices = size.costs[0].usual, size.costs[rung], self._prices
        drafts_s = self._estimates.drafts_s(size.rows.value, rung, plain_s)
        loss_s = cost.usual - plain_s if cost.is_known else drafts_s
        is_free = loss_s <= _FREE_SHARE * plain_s
        if prices.are_measured and not cost.is_known:
            is_free = prices.are_promising(self.ladder[rung], size.num_rows)
        return 0.0 if is_free else loss_s * self._num_wanted(size, rung) / 2

    def _num_first(self, size: BatchSize) -> int:
        """Steps before the first trial of a size. Dummy runs have shown what plain ones cost."""
        if self._prices.are_measured and size.chosen == 0:
            return 1
        return max(FIRST_STEPS, self._num_wanted(size, size.chosen))

    def _num_wanted(self, size: BatchSize, rung: int) -> int:
        """Samples of a trial. The gain of drafts varies more than the cost of a step, and that of
        sharing is small.
        """
        rounds = TRIAL_ROUNDS if rung else 0
        if self._estimates.is_other_form(size, rung):
            rounds *= _FORM_ROUNDS
        return max(_TRIAL_STEPS, math.ceil(rounds / max(size.rows.value, 1.0)))

    def _judge(self, size: BatchSize, trial: Trial) -> None:
        """End a trial that has enough samples, or whose steps cost more than drafts can gain."""
        rung, samples = trial.rung, trial.num_samples
        is_complete = samples >= self._num_wanted(size, rung)
        now = self._estimates.chosen_rate(size)
        most = self._gains.likely(rung) / trial.seconds.usual
        is_hopeless = rung > size.chosen and samples > 0 and most < now
        is_hopeless |= trial.num_slow >= _MOST_SLOW
        is_hopeless |= self._is_unpaid(size, trial) or self._is_far_slower(size, trial)
        longest = max(LONGEST_TRIAL, 2 * self._num_wanted(size, rung))
        is_new = size.num_steps - trial.since < longest
        if is_new and not is_complete and not is_hopeless:
            return
        size.end_trial(trial, is_complete=is_complete)
        least = self._least_gain(size, rung)
        if not size.is_known:
            size.due[rung] = size.num_steps + FIRST_STEPS  # after the chosen rung is measured
        elif is_complete and self._estimates.rate(size, rung, trial.seconds.usual) > least * now:
            size.adopt(rung)
        else:
            is_usual = self._is_usual(size, trial)
            if (
                is_usual
                and self._estimates.rate(size, rung, trial.seconds.usual) < _FAR_SLOWER * now
            ):
                size.waits[rung] = max(size.waits[rung], _CLEAR_WAIT)
            size.wait(rung, is_sure=is_complete or is_usual)
            if is_usual and not could_pay(self.ladder, trial, size.costs[0].usual):
                size.wait_long(rung)

    def _least_gain(self, size: BatchSize, rung: int) -> float:
        """How much faster than the chosen rung another one must have been."""
        if self._estimates.is_other_form(size, rung):
            return _SHARING_GAIN if self.ladder[rung].is_shared else 1.0
        return LEAST_GAIN if rung else _PLAIN_GAIN

    def _is_far_slower(self, size: BatchSize, trial: Trial) -> bool:
        """Whether one plain step has shown again what is known: that drafts are far faster."""
        known, seen = size.costs[0], trial.seconds
        if trial.rung or not (known.is_known and seen.is_known and size.is_known):
            return False
        return 1 / min(known.usual, seen.usual) < _FAR_SLOWER * self._estimates.chosen_rate(size)

    def _is_unpaid(self, size: BatchSize, trial: Trial) -> bool:
        """Whether a trial of drafts that are not free lost more than trials may."""
        if size.chosen or not trial.num_samples or self._credit.drafts_s >= 0:
            return False
        return trial.seconds.usual > (1 + _FREE_SHARE) * size.costs[0].usual

    def _is_usual(self, size: BatchSize, trial: Trial) -> bool:
        """Whether known prices explain what drafts cost more than plain decoding."""
        plain_s = size.costs[0].usual
        drafts_s = self._estimates.drafts_s(size.rows.value, trial.rung, plain_s)
        is_from_plain = size.chosen == 0 and trial.num_samples > 0 and drafts_s > 0
        return is_from_plain and trial.seconds.usual < _MOST_UNEXPLAINED * (plain_s + drafts_s)

    def _size_of(self, num_rows: int) -> BatchSize:
        octave = num_rows.bit_length()
        if octave not in self._sizes:
            self._sizes[octave] = self._new_size(num_rows)
        return self._sizes[octave]

    def _new_size(self, num_rows: int) -> BatchSize:
        most = max(map(self._gains.most, range(len(self.ladder))))
        free = self._estimates.first_rung(num_rows)
        is_priced = not self._prices.are_measured and self._prices.query_token_s > 0
        is_undecided = free > 0 and is_priced
        size = BatchSize(
            len(self.ladder),
            num_rows=num_rows,
            chosen=0 if is_undecided else free,
            first_trial=min(FIRST_STEPS / max(most - 1, 1e-9), DRAFT_WAIT),
            is_undecided=is_undecided,
        )
        if not self._prices.can_pay(self.ladder, num_rows, least_gain=LEAST_GAIN):
            size.postpone_drafts()
        return size

    def _begin(self, size: BatchSize, num_rows: int) -> None:
        """Begin with drafts if they are free by the price of a prompt token."""
        size.is_undecided = False
        free = self._estimates.first_rung(num_rows)
        plain_s = size.costs[0].usual
        if self._estimates.drafts_s(num_rows, free, plain_s) <= _FREE_SHARE * plain_s:
            size.chosen = free


def _is_round(number: int) -> bool:
    """Whether it is one of the first trials that get rarer, or one of the regular ones."""
    return number in _FIRST_LOOKS or (number > 0 and number % DRAFT_WAIT == 0)
