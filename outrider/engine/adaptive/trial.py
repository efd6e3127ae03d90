"""A rung that is tried for a few steps, before it is chosen or left again."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from outrider.engine.adaptive.recent_samples import UsualSeconds
from outrider.wire.draft_budget import Rung

FIRST_STEPS = 4  # of a new batch size; then another rung is tried
TRIAL_ROUNDS = 8  # rows times steps of a trial: few rows need more steps to show their gain
LONGEST_TRIAL = 24  # steps: more than the slow ones that 2,000 steps may have (1%)
IMPOSSIBLE = 1.15  # fewer drafts, or none, cannot take so much longer than more


class Verdict(Enum):
    """What a trial has shown so far."""

    OPEN = auto()  # it goes on
    ADOPTED = auto()  # the rung was faster than the chosen one
    UNMEASURED = auto()  # none of its steps ran, or the chosen rung is not measured
    CUT_SHORT = auto()  # something may have made its steps slow
    LOST = auto()  # the rung was not faster
    LOST_CLEARLY = auto()  # it was far slower than plain decoding
    NEVER_PAYS = auto()  # no text would make any rung faster than plain decoding


@dataclass(slots=True, eq=False)
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


def could_pay(ladder: Sequence[Rung], trial: Trial, plain_s: float) -> bool:
    """Whether a rung would be faster than plain decoding if all its drafts were accepted, by the
    cost of the rung that was tried.
    """
    drafts_s = max(trial.seconds.usual - plain_s, 0.0) / ladder[trial.rung].drafts
    return any(
        rung.most_emitted * plain_s > plain_s + rung.drafts * drafts_s for rung in ladder[1:]
    )
