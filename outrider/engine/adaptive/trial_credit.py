"""What trials have cost, against what they may cost."""

_MOST_LOST = 0.015  # share of all time that trials of drafts may cost batches that decode plainly
_MOST_PLAIN = 0.01  # the same of trials of plain decoding in batches that draft
_KEPT = 1 - 1 / 8192  # of that time, step by step: a quiet day is no credit for a bad hour


class TrialCredit:
    """Owns the seconds of recent steps, and those of them that trials lost."""

    def __init__(self) -> None:
        self._spent_s = 0.0
        self._lost_s, self._plain_lost_s = 0.0, 0.0  # to trials of drafts, and of plain decoding

    @property
    def drafts_s(self) -> float:
        """Seconds that trials of drafts may still cost batches that decode plainly."""
        return _MOST_LOST * self._spent_s - self._lost_s

    @property
    def plain_s(self) -> float:
        """Seconds that trials of plain decoding may still cost batches that draft."""
        return _MOST_PLAIN * self._spent_s - self._plain_lost_s

    def earned_s(self, seconds: float, *, is_plain: bool) -> float:
        """What a step of so many seconds adds to it."""
        return seconds * (_MOST_PLAIN if is_plain else _MOST_LOST)

    def spend(self, seconds: float, num: int = 1) -> None:
        """So many steps took so long each."""
        kept = _KEPT**num
        self._spent_s = kept * self._spent_s + num * seconds
        self._lost_s *= kept
        self._plain_lost_s *= kept

    def lose_to_drafts(self, seconds: float) -> None:
        """Negative if a step of a trial gained."""
        self._lost_s = max(self._lost_s + seconds, 0.0)

    def lose_to_plain(self, seconds: float) -> None:
        self._plain_lost_s += max(seconds, 0.0)
