"""What is measured of one number of rows: seconds of a step by rung (budget), and trials of rungs.

Slow steps that something else caused do not count. It has no clock: steps are its time.
"""

import math
from collections.abc import Sequence

from outrider.engine.adaptive.recent_samples import MovingMean, UsualSeconds
from outrider.engine.adaptive.step_log import MeasuredStep
from outrider.engine.adaptive.trial import (
    FIRST_STEPS,
    IMPOSSIBLE,
    LONGEST_TRIAL,
    Trial,
    Verdict,
)

_FIRST_WAIT = 8  # steps from a new choice, or the first lost trial of a rung, to the next trial
# After a lost trial the next one waits longer. A trial of plain decoding is cheap and protects from
# loss. A trial of drafts can cost several times a plain step.
_PLAIN_GROWTH, PLAIN_WAIT = 2.0, 256
_DRAFT_GROWTH, DRAFT_WAIT = 4.0, 1024
_CUT_GROWTH = 2.0  # after a trial that a slow step cut short
_CLEAR_WAIT = 64.0  # steps at least after drafts were far slower than plain decoding
_SLOW = 2.0  # times its usual seconds: something else made the step slow
_YOUNG = 64  # steps of a choice that may still be chance
_SETTLED = 256  # steps


class BatchSize:
    """Batches of about one number of rows: the cost of each rung, and when its next trial is due.

    Steps may also read prompts. Their seconds are those of the same step without prompts.
    """

    def __init__(
        self,
        num_rungs: int,
        *,
        num_rows: int,  # of the first step
        chosen: int,
        first_trial: float,
        is_undecided: bool = False,
    ) -> None:
        self._first_rows = num_rows
        self.chosen = chosen  # the rung used outside of trials
        self.is_undecided = is_undecided  # the first plain steps decide whether it begins to draft
        self.costs = [UsualSeconds() for _ in range(num_rungs)]
        self.rows, self.prompt = MovingMean(), MovingMean()  # of steps: rows, tokens of prompts
        self.prompt_share = MovingMean()  # of steps that read prompts
        self.num_steps = 0
        self.trial: Trial | None = None
        self._num_passed_over = 0  # steps with prompts for which the chosen drafts were too dear
        self._waits = [float(_FIRST_WAIT)] * num_rungs  # steps from a lost trial to the next
        # Number of the step from which a trial of the rung may begin.
        self._due = [float(FIRST_STEPS)] + [first_trial] * (num_rungs - 1)
        self._look_at = 0.0  # number of the step at which a trial may be due
        self._chosen_at = 0  # number of the step
        self._num_impossible = 0  # plain steps in a row that were left out

    @property
    def is_known(self) -> bool:
        return self.costs[self.chosen].is_known

    @property
    def num_rows(self) -> int:
        """Rows of a usual step."""
        return round(self.rows.value) or self._first_rows

    @property
    def is_settled(self) -> bool:
        """Whether the choice is old enough to try what may gain little."""
        return self.num_steps - self._chosen_at >= _SETTLED

    def begin_with(self, rung: int) -> None:
        """The first plain steps have been measured, and decided this."""
        self.is_undecided = False
        self.chosen = rung

    def note(self, step: MeasuredStep) -> None:
        num = step.stands_for
        self.rows.note(step.load.num_rows, num)
        self.prompt.note(step.load.num_prompt, num)
        self.prompt_share.note(float(step.load.num_prompt > 0), num)
        if step.rung == 0 and self._is_impossible(step.alone_s):
            return
        if step.trial is not None and step.trial is self.trial:
            if not self._note_trial(step.trial, step.alone_s):
                return
            usual = step.trial.seconds.usual
        else:
            cost = self.costs[step.rung]
            if step.rung and step.alone_s > _SLOW * cost.usual:
                self._doubt(step.rung)
            cost.note(step.alone_s)
            usual = cost.usual
        for rung, fewer in enumerate(self.costs[: step.rung]):
            # All its steps were slow: measure again. The chosen one's are no older than these.
            if rung != self.chosen and fewer.is_known and fewer.usual > IMPOSSIBLE * usual:
                fewer.forget()

    def _note_trial(self, trial: Trial, seconds: float) -> bool:
        """Whether the step counts: drafts that take longer than in proportion to their tokens were
        slowed by something else.
        """
        if self.chosen and trial.rung and seconds > trial.most_s:
            trial.num_slow += 1
            return False
        trial.num_samples += 1
        trial.seconds.note(seconds)
        return True

    def _doubt(self, rung: int) -> None:
        """Compare a young choice of drafts with plain decoding now: while a step is slow for
        another reason, drafts make it slower, and chance may have chosen them.
        """
        if rung == self.chosen and self.num_steps - self._chosen_at < _YOUNG:
            self._set_due(0, min(self._due[0], float(self.num_steps)))

    def _is_impossible(self, seconds: float) -> bool:
        """Whether something else made this plain step slow: with drafts it would take longer.

        Many such steps in a row say that the costs of drafts are out of date, or if drafts are
        chosen, that plain steps are slow on this machine.
        """
        least = min((cost.usual for cost in self.costs[1:]), default=math.inf)
        if seconds <= IMPOSSIBLE * least:
            self._num_impossible = 0
            return False
        self._num_impossible += 1
        if self._num_impossible < LONGEST_TRIAL:
            return True
        for rung, cost in enumerate(self.costs[1:], start=1):
            if rung != self.chosen:
                cost.forget()
        return False

    def looks_for_trial(self) -> bool:
        """Whether a trial may be due."""
        return self.num_steps >= self._look_at

    def is_at_rest(self) -> bool:
        """Whether it decodes plainly and tries nothing, so that few of its steps need measuring."""
        return not (self.chosen or self.trial or self.is_undecided or self.looks_for_trial())

    def is_due(self, rung: int) -> bool:
        return self.num_steps >= self._due[rung]

    def postpone(self, rung: int) -> None:
        """The rung promises nothing."""
        self._set_due(rung, float(self.num_steps + PLAIN_WAIT))

    def postpone_drafts(self) -> None:
        """No text should make any rung pay, before one is tried."""
        self._due[1:] = [float(self.num_steps + DRAFT_WAIT)] * (len(self._due) - 1)

    def begin_trial(self, rung: int, *, most_s: float) -> None:
        self.trial = Trial(rung=rung, since=self.num_steps, most_s=most_s)

    def rest(self, steps: Sequence[float]) -> None:
        """No trial begins now: those that are due have time for it after so many steps, each."""
        later = [*self._due, float(self._chosen_at + _SETTLED)]
        later = [due for due in later if due > self.num_steps]
        self._look_at = min([*later, *(self.num_steps + each for each in steps)], default=0.0)

    def end_trial(self, trial: Trial, verdict: Verdict, *, is_complete: bool) -> None:
        """A slow step may have ended an incomplete trial."""
        self.trial, rung = None, trial.rung
        if is_complete:
            self.costs[rung] = trial.seconds
        if verdict is Verdict.ADOPTED:
            self._adopt(rung)
        elif verdict is Verdict.NEVER_PAYS:
            self._waits[rung] = float(DRAFT_WAIT)
            self._set_due(rung, float(self.num_steps + DRAFT_WAIT))
        elif verdict is Verdict.UNMEASURED:  # after the chosen rung is measured
            wait = self._waits[rung] if self.is_known else float(FIRST_STEPS)
            self._set_due(rung, self.num_steps + wait)
        else:
            self._wait(rung, verdict)

    def _wait(self, rung: int, verdict: Verdict) -> None:
        """The trial did not change the choice: the one after the next waits longer, and more so if
        nothing else made its steps slow.
        """
        if verdict is Verdict.LOST_CLEARLY:
            self._waits[rung] = max(self._waits[rung], _CLEAR_WAIT)
        self._set_due(rung, self.num_steps + self._waits[rung])
        growth, most = (_DRAFT_GROWTH, DRAFT_WAIT) if rung else (_PLAIN_GROWTH, PLAIN_WAIT)
        growth = min(growth, _CUT_GROWTH) if verdict is Verdict.CUT_SHORT else growth
        self._waits[rung] = min(self._waits[rung] * growth, most)

    def _adopt(self, rung: int) -> None:
        """Choose the rung. After a change between plain decoding and drafts, the other is tried
        again soon. Larger rungs are tried at once, or after their wait if they lost before.
        """
        if 0 in (self.chosen, rung):
            for other in range(max(self.chosen, rung) + 1):
                self._waits[other] = float(_FIRST_WAIT)
                self._set_due(other, float(self.num_steps + _FIRST_WAIT))
        for other in range(rung + 1, len(self._due) if rung else 0):
            has_lost = self._waits[other] > _FIRST_WAIT
            self._set_due(other, self.num_steps + (self._waits[other] if has_lost else 0.0))
            if self.chosen == 0:
                self.costs[other].forget()  # measured before plain decoding was chosen
        self.chosen, self._chosen_at = rung, self.num_steps

    def _set_due(self, rung: int, step: float) -> None:
        self._due[rung] = step
        self._look_at = 0.0

    def passes_over(self) -> bool:
        """The chosen drafts are too dear beside the prompts of a step. Whether that is so: now and
        then, at first more often, they are used all the same.
        """
        self._num_passed_over += 1
        number = self._num_passed_over
        return not (number in _FIRST_LOOKS or number % DRAFT_WAIT == 0)


_FIRST_LOOKS = (16, 64, 256)  # steps with prompts that use drafts which looked too dear there
