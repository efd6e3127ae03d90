"""`forward_occupancy`: how busy the device was lately, from the sums that a worker sends."""

import pytest

from outrider.server.occupancy_window import OccupancyWindow


def test_the_share_is_zero_before_any_work_and_follows_the_sums():
    window = OccupancyWindow()
    assert window.note(active_s=0.0, busy_s=0.0) == 0.0
    assert window.note(active_s=2.0, busy_s=1.0) == pytest.approx(0.5)
    assert window.note(active_s=4.0, busy_s=2.6) == pytest.approx(0.65)


def test_only_the_last_ten_seconds_with_requests_count():
    window = OccupancyWindow()
    for second in range(1, 31):
        share = window.note(active_s=second, busy_s=0.0)
    assert share == 0.0
    for second in range(31, 41):
        share = window.note(active_s=second, busy_s=second - 30.0)
    assert share == pytest.approx(1.0)


def test_a_new_worker_counts_from_zero_again():
    window = OccupancyWindow()
    window.note(active_s=50.0, busy_s=10.0)
    assert window.note(active_s=1.0, busy_s=0.75) == pytest.approx(0.75)


def test_marks_of_many_short_steps_stay_few():
    window = OccupancyWindow()
    for step in range(1, 50_001):
        share = window.note(active_s=step * 1e-3, busy_s=step * 0.9e-3)
    assert share == pytest.approx(0.9)
    assert len(window._marks) <= 102
