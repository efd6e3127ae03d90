"""What is measured of one number of rows: seconds of a step by rung (budget), and trials of rungs.

Slow steps that something else caused do not count. It has no clock: steps are its time.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.wire.draft_budget import Rung

FIRST_STEPS = 4  # of a new batch size; then another rung is tried
TRIAL_ROUNDS = 8  # rows times steps of a trial: few rows need more steps to show their gain
LONGEST_TRIAL = 24  # steps: more than the slow ones that 2,000 steps may have (1%)
IMPOSSIBLE = 1.15  # fewer drafts, or none, cannot take so much longer than more
_WINDOW = 8  # steps of a rung that are remembered
_MEMORY = 0.1  # least weight of a step with many rows; one with few rows has less
_FIRST_WAIT = 8  # steps from a new choice, or the first lost trial of a rung, to the next trial
# After a lost trial the next one waits longer. A trial of plain decoding is cheap and protects from
# loss. A trial of drafts can cost several times a plain step.
_PLAIN_GROWTH, PLAIN_WAIT = 2.0, 256
_DRAFT_GROWTH, DRAFT_WAIT = 4.0, 1024
_SLOW = 2.0  # times its usual seconds: something else made the step slow
_YOUNG = 64  # steps of a choice that may still be chance
_SETTLED = 256  # steps
_CUT_GROWTH = 2.0  # after a trial that a slow step cut short


@dataclass(slots=True)
class MovingMean:
    """The mean of the first samples, then a moving mean."""

    value: float = 0.0
    num: int = 0  # of samples

    def note(self, sample: float, num: int = 1) -> None:
        """`sample` is the mean of so many."""
        self.num += num
        least = _MEMORY * min(1.0, num / TRIAL_ROUNDS)
        self.value += max(least, num / self.num) * (sample - self.value)

    def fade(self) -> None:
        """Let the next samples count more than the old ones: the text may have changed."""
        self.num = min(self.num, TRIAL_ROUNDS // 2)


class UsualSeconds:
    """The usual seconds of a rung's last steps: the lower quartile, which slow steps do not move.

    Captures, page faults and other processes make steps slower, and nothing makes a step faster.
    """

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=_WINDOW)
        self.usual = math.inf  # until there is a sample

    def note(self, seconds: float) -> None:
        self._last.append(seconds)
        self.usual = sorted(self._last)[(len(self._last) - 1) // 4]

    def forget(self) -> None:
        self._last.clear()
        self.usual = math.inf

    @property
    def num(self) -> int:
        """Steps that are remembered."""
        return len(self._last)

    @property
    def is_known(self) -> bool:
        return bool(self._last)


@dataclass(slots=True)
class Trial:
    """A rung on trial, measured by the steps of the trial alone: older ones may be out of date."""

    rung: int
    since: int  # number of its first step
    most_s: float  # of a step, in proportion to its tokens
    seconds: UsualSeconds = field(default_factory=UsualSeconds)
    num_samples: int = 0
    num_slow: int = 0  # steps of drafts that were left out
    num_in_flight: int = 0

    def wants_step(self, num_wanted: int, *, is_careful: bool) -> bool:
        """Whether the next step belongs to the trial. With care its first step runs alone, so that
        its cost is known before there are more.
        """
        if is_careful and not self.num_samples:
            return not self.num_in_flight
        return self.num_samples + self.num_in_flight < num_wanted


def emitted_at(accept_rate: float, most: int) -> float:
    """Tokens of a round whose drafts are accepted at this rate each."""
    return sum(accept_rate**depth for depth in range(most))


def accept_rate_of(emitted: float, most: int) -> float:
    """The rate at which every draft of a chain would be accepted, by what a round emits."""
    low, high = 0.0, 1.0
    for _ in range(10):  # bisection
        middle = (low + high) / 2
        if emitted_at(middle, most) < emitted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def could_pay(ladder: Sequence[Rung], trial: Trial, plain_s: float) -> bool:
    """Whether a rung would be faster than plain decoding if all its drafts were accepted, by the
    cost of the rung that was tried.
    """
    drafts_s = max(trial.seconds.usual - plain_s, 0.0) / ladder[trial.rung].drafts
    return any(
        rung.most_emitted * plain_s > plain_s + rung.drafts * drafts_s for rung in ladder[1:]
    )


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
        self.num_passed_over = 0  # steps with prompts for which the chosen drafts were too dear
        self.trial: Trial | None = None
        self.waits = [float(_FIRST_WAIT)] * num_rungs  # steps from a lost trial to the next
        # Number of the step from which a trial of the rung may begin.
        self.due = [float(FIRST_STEPS)] + [first_trial] * (num_rungs - 1)
        self._chosen_at = 0  # number of the step
        self._num_impossible = 0  # plain steps in a row that were left out

    @property
    def is_known(self) -> bool:
        return self.costs[self.chosen].is_known

    @property
    def num_rows(self) -> int:
        """Rows of a usual step."""
        return round(self.rows.value) or self._first_rows

    def note(self, rung: int, seconds: float, *, num_rows: int, num_prompt: int) -> None:
        """A step took so long, without what its prompts took."""
        self.rows.note(num_rows)
        self.prompt.note(num_prompt)
        self.prompt_share.note(float(num_prompt > 0))
        if rung == 0 and self._is_impossible(seconds):
            return
        trial = self.trial
        if trial and trial.rung == rung:
            if self.chosen and rung and seconds > trial.most_s:
                trial.num_slow += 1
                return  # more than in proportion to its tokens: something else made it slow
            trial.num_samples += 1
            trial.seconds.note(seconds)
            usual = trial.seconds.usual
        else:
            if rung and seconds > _SLOW * self.costs[rung].usual:
                self._doubt(rung)
            self.costs[rung].note(seconds)
            usual = self.costs[rung].usual
        for fewer in self.costs[:rung]:
            if fewer.is_known and fewer.usual > IMPOSSIBLE * usual:
                fewer.forget()  # all its steps were slow: measure again

    @property
    def is_settled(self) -> bool:
        """Whether the choice is old enough to try what may gain little."""
        return self.num_steps - self._chosen_at >= _SETTLED

    def _doubt(self, rung: int) -> None:
        """Compare a young choice of drafts with plain decoding now: while a step is slow for
        another reason, drafts make it slower, and chance may have chosen them.
        """
        if rung == self.chosen and self.num_steps - self._chosen_at < _YOUNG:
            self.due[0] = min(self.due[0], float(self.num_steps))

    def _is_impossible(self, seconds: float) -> bool:
        """Whether something else made this plain step slow: with drafts it would take longer.

        Many such steps in a row say that the costs of drafts are out of date.
        """
        least = min((cost.usual for cost in self.costs[1:]), default=math.inf)
        if seconds <= IMPOSSIBLE * least:
            self._num_impossible = 0
            return False
        self._num_impossible += 1
        if self._num_impossible < LONGEST_TRIAL:
            return True
        for cost in self.costs[1:]:
            cost.forget()
        return False

    def begin_trial(self, rung: int, *, most_s: float) -> None:
        self.trial = Trial(rung=rung, since=self.num_steps, most_s=most_s)

    def end_trial(self, trial: Trial, *, is_complete: bool) -> None:
        """A slow step may have ended an incomplete trial."""
        self.trial = None
        if is_complete:
            self.costs[trial.rung] = trial.seconds

    def wait(self, rung: int, *, is_sure: bool) -> None:
        """The trial did not change the choice: the one after the next waits longer, and more so if
        nothing else made its steps slow.
        """
        self.due[rung] = self.num_steps + self.waits[rung]
        growth, most = (_DRAFT_GROWTH, DRAFT_WAIT) if rung else (_PLAIN_GROWTH, PLAIN_WAIT)
        growth = growth if is_sure else min(growth, _CUT_GROWTH)
        self.waits[rung] = min(self.waits[rung] * growth, most)

    def wait_long(self, rung: int) -> None:
        """No text would make the rung pay."""
        self.waits[rung] = float(DRAFT_WAIT)
        self.due[rung] = float(self.num_steps + DRAFT_WAIT)

    def postpone_drafts(self) -> None:
        """No text should make any rung pay, before one is tried."""
        self.due[1:] = [float(self.num_steps + DRAFT_WAIT)] * (len(self.due) - 1)

    def adopt(self, rung: int) -> None:
        """Choose the rung. After a change between plain decoding and drafts, the other is tried
        again soon. Larger rungs are tried at once, or after their wait if they lost before.
        """
        if 0 in (self.chosen, rung):
            for other in range(max(self.chosen, rung) + 1):
                self.waits[other] = float(_FIRST_WAIT)
                self.due[other] = float(self.num_steps + _FIRST_WAIT)
        for other in range(rung + 1, len(self.due) if rung else 0):
            has_lost = self.waits[other] > _FIRST_WAIT
            self.due[other] = self.num_steps + (self.waits[other] if has_lost else 0.0)
            if self.chosen == 0:
                self.costs[other].forget()  # measured before plain decoding was chosen
        self.chosen, self._chosen_at = rung, self.num_steps
