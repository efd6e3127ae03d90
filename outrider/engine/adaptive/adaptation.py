"""How far a batch drafts, from measured step times and measured acceptance.

Verifying drafts is free while a step is bound by reading weights, and costs time once there are
many query tokens. The border depends on the machine, the model, the number of rows, the prompt
tokens beside them and the text. So it is measured: a number of rows changes its rung (budget) only
after a trial of the other rung. What prompts beside the rows change is read off a cost curve.
"""

from collections.abc import Sequence

from outrider.engine.adaptive.batch_size import BatchSize
from outrider.engine.adaptive.batch_sizes import BatchSizes
from outrider.engine.adaptive.beside_prompts import BesidePrompts
from outrider.engine.adaptive.cost_curve import CostCurve
from outrider.engine.adaptive.judge_trial import TrialJudge
from outrider.engine.adaptive.next_trial import NextTrial
from outrider.engine.adaptive.rung_estimates import RungEstimates
from outrider.engine.adaptive.rung_gains import RungGains
from outrider.engine.adaptive.rung_prices import RungPrices
from outrider.engine.adaptive.step_log import MeasuredStep, StepInFlight, StepLog
from outrider.engine.adaptive.trial import IMPOSSIBLE, Trial, Verdict
from outrider.engine.adaptive.trial_credit import TrialCredit, TrialKind, kind_of
from outrider.engine.draft_policy import StepLoad
from outrider.wire.draft_budget import Budget, Rung, ladder_of
from outrider.wire.runner_facts import RungCost

_MOSTLY = 0.5  # share of steps with prompts from which trials do not wait for steps without
_REST = 8  # steps of a batch at rest, of which one is measured
_LEAST_SECONDS = 1e-9  # of a step that took no time by the clock


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
        self._next_trial = NextTrial(self.ladder, self._estimates, self._credit)
        self._judge = TrialJudge(self.ladder, self._estimates, self._credit)
        self._sizes = BatchSizes(self.ladder, self._estimates)
        self._log = StepLog()

    def choose(self, step: int, *, num_rows: int, num_prompt: int) -> Rung:
        size = self._sizes.of(num_rows)
        if size.is_at_rest() and not num_prompt:
            return self._rest(size, step)
        self._sizes.decide(size, num_rows)
        if size.trial:
            self._try_on(size, size.trial)
        elif size.is_known:
            self._next_trial.begin(size)
        trial = self._trial_of(size, num_rows, num_prompt)
        if trial:
            rung = trial.rung
        else:
            rung = self._choose_beside(size, num_rows, num_prompt) if num_prompt else size.chosen
        size.num_steps += 1
        self._log.decide(step, rung, trial)
        return self.ladder[rung]

    def _rest(self, size: BatchSize, step: int) -> Rung:
        """Decode plainly, and measure a step now and then: measuring takes time, too."""
        size.num_steps += 1
        if size.num_steps % _REST == 0:
            self._log.decide(step, 0, None, stands_for=_REST)
        return self.ladder[0]

    def settle(self, step: int, load: StepLoad) -> None:
        self._log.settle(step, load)

    def note(self, step: int, *, seconds: float, emitted_per_row: float) -> None:
        was = self._log.complete(step)
        if was is None:
            return
        load = was.load
        if not load.num_rows:
            self._prices.note_prompts(seconds, num_prompt=load.num_prompt)
            self._curve.note(seconds, num_tokens=load.num_prompt)
            return
        measured = self._without_prompts(was, seconds, emitted_per_row)
        size = self._sizes.of(load.num_rows)
        self._credit.spend(seconds, was.stands_for)
        self._count_loss(size, measured)
        note_step = self._curve.note_drafted if was.rung else self._curve.note
        note_step(seconds, num_tokens=load.num_query + load.num_prompt)
        if was.trial and not was.trial.num_samples:
            self._gains.fade(was.rung)
        size.note(measured)
        self._gains.note(was.rung, emitted_per_row, num_rows=load.num_rows)

    @property
    def trial_credit_s(self) -> float:
        """Seconds that trials of drafts may still cost batches that decode plainly."""
        return self._credit.left_s(TrialKind.DRAFTS)

    def _without_prompts(self, was: StepInFlight, seconds: float, emitted: float) -> MeasuredStep:
        """The step as its rows alone would have been. They take no less than by the curve: it is a
        small difference of two large numbers where there are many prompt tokens.
        """
        load = was.load
        prompt_s = self._curve.added_s(load.num_prompt, beside=load.num_query)
        least_s = self._curve.seconds(load.num_query) if load.num_prompt else 0.0
        return MeasuredStep(
            rung=was.rung,
            trial=was.trial,
            load=load,
            stands_for=was.stands_for,
            alone_s=max(seconds - prompt_s, least_s, _LEAST_SECONDS),
            emitted=emitted,
        )

    def _count_loss(self, size: BatchSize, step: MeasuredStep) -> None:
        """Add up what trials cost more than the chosen rung would have for as many tokens.

        A trial of more drafts than the chosen ones counts whole, also what something else delayed:
        such a trial is repeated until nothing disturbs it.
        """
        trial = step.trial
        if not trial or not size.is_known:
            return
        seen_s = step.alone_s
        if not step.rung:
            seen_s = min(seen_s, IMPOSSIBLE * size.costs[size.chosen].usual)
        elif not size.chosen:
            seen_s = min(seen_s, trial.most_s)
        elif step.rung < size.chosen:
            return
        lost_s = seen_s - step.emitted / self._estimates.chosen_rate(size)
        self._credit.lose(kind_of(tried=step.rung, chosen=size.chosen), lost_s)

    def _try_on(self, size: BatchSize, trial: Trial) -> None:
        """Go on with the trial, or end it."""
        verdict = self._judge.judge(size, trial)
        if verdict is not Verdict.OPEN:
            is_complete = self._judge.is_complete(size, trial)
            size.end_trial(trial, verdict, is_complete=is_complete)

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
        num_wanted = self._estimates.num_trial_steps(size, trial.rung)
        return trial if trial.wants_step(num_wanted, is_careful=is_careful) else None

    def _choose_beside(self, size: BatchSize, num_rows: int, num_prompt: int) -> int:
        """The chosen rung, or a smaller one where prompts make drafts dearer than they are worth.

        Now and then the chosen one, at first more often: the curve may be wrong where no step has
        been, and an easier text would not be noticed.
        """
        if not size.chosen:
            return 0
        values = self._estimates.values(size, self._estimates.rungs_up_to(size.chosen))
        if not all(each.seconds for each in values):
            return size.chosen
        rung = self._beside.choose(values, size, num_rows=num_rows, num_prompt=num_prompt)
        if rung or size.passes_over():
            return rung
        self._gains.fade(size.chosen)  # what it emits now counts more
        return size.chosen
