"""Progress ends with its task, also when the task fails."""

import pytest

from outrider.hub.download_bars import BarReporter
from outrider.hub.download_progress import UNKNOWN_TOTAL, SilentReporter, reported


def test_a_failed_task_is_finished_too() -> None:
    class Counter(SilentReporter):
        num_finished = 0

        def finish(self) -> None:
            self.num_finished += 1

    counter = Counter()
    with pytest.raises(KeyboardInterrupt), reported(counter, "work", 1):
        raise KeyboardInterrupt
    assert counter.num_finished == 1


def test_bars_follow_each_other_and_leave_stdout_alone(capsys: pytest.CaptureFixture[str]) -> None:
    bars = BarReporter()
    for total in (10, UNKNOWN_TOTAL):
        with reported(bars, "work", total) as advance:
            advance(3)
    assert capsys.readouterr().out == ""
