"""What trials have cost, against what they may cost."""

from enum import Enum, auto

_KEPT = 1 - 1 / 8192  # of all time, step by step: a quiet day is no credit for a bad hour


class TrialKind(Enum):
    """What a trial tries, seen from the chosen rung. Each kind is paid from a purse of its own."""

    PLAIN = auto()  # plain decoding, where drafts are chosen
    DRAFTS = auto()  # drafts, where plain decoding is chosen
    MORE = auto()  # more drafts than the chosen ones


def kind_of(*, tried: int, chosen: int) -> TrialKind:
    """Of a trial of a rung; of fewer drafts, which are not paid for, too."""
    if tried == 0:
        return TrialKind.PLAIN
    return TrialKind.DRAFTS if chosen == 0 else TrialKind.MORE


# Shares of all time that trials may cost.
_MOST = {TrialKind.PLAIN: 0.01, TrialKind.DRAFTS: 0.01, TrialKind.MORE: 0.015}


class TrialCredit:
    """Owns the seconds of recent steps, and those of them that trials lost."""

    def __init__(self) -> None:
        self._spent_s = 0.0
        self._lost_s = dict.fromkeys(TrialKind, 0.0)

    def left_s(self, kind: TrialKind) -> float:
        """Seconds that such trials may still cost."""
        return _MOST[kind] * self._spent_s - self._lost_s[kind]

    def earned_s(self, kind: TrialKind, seconds: float) -> float:
        """What a step of so many seconds adds to that."""
        return _MOST[kind] * seconds

    def spend(self, seconds: float, num: int = 1) -> None:
        """So many steps took so long each."""
        kept = _KEPT**num
        self._spent_s = kept * self._spent_s + num * seconds
        for kind in TrialKind:
            self._lost_s[kind] *= kept

    def lose(self, kind: TrialKind, seconds: float) -> None:
        """A step of a trial cost so much more than the chosen rung; less than 0 if it gained."""
        self._lost_s[kind] = max(self._lost_s[kind] + seconds, 0.0)
