"""Progress is finished when its task ends or fails."""

import pytest

from outrider.hub.download_bars import BarReporter
from outrider.hub.download_progress import UNKNOWN_TOTAL, SilentReporter, reported


def test_progress_of_a_failed_task_is_finished() -> None:
    class Counter(SilentReporter):
        num_finished = 0

        def finish(self) -> None:
            self.num_finished += 1

    counter = Counter()
    with pytest.raises(KeyboardInterrupt), reported(counter, "work", 1):
        raise KeyboardInterrupt
    assert counter.num_finished == 1


def test_progress_without_a_terminal_is_a_line_per_task(capsys: pytest.CaptureFixture[str]) -> None:
    bars = BarReporter()
    for task, total in (("downloading [a]", 10), ("unpacking", UNKNOWN_TOTAL)):
        with reported(bars, task, total) as advance:
            advance(3)
    assert capsys.readouterr() == ("", "downloading [a]\nunpacking\n")
