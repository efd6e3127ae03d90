"""How many snapshots of row state there are."""

import pytest

from outrider.errors import ConfigError
from outrider.runtime.kv_capacity import count_snapshots


@pytest.mark.parametrize(
    ("requested", "row_bytes", "max_rows", "num"),
    [
        ("auto", 10, 100, 20),  # a fifth of the memory
        ("auto", 10, 2, 16),  # 8 for each row
        ("auto", 2000, 100, 0),
        ("auto", 0, 100, 0),  # no row state
        (90, 10, 2, 90),
        (0, 10, 2, 0),
    ],
)
def test_snapshots_take_their_share_of_memory_or_what_was_requested(
    requested, row_bytes, max_rows, num
):
    how = {"row_bytes": row_bytes, "max_rows": max_rows, "free_bytes": 1000}
    assert count_snapshots(requested, **how) == num


@pytest.mark.parametrize(("page_bytes", "num"), [(0, 20), (700, 20), (850, 15), (1000, 0)])
def test_snapshots_leave_room_for_the_pages_that_were_requested(page_bytes, num):
    """A kv_tokens that fits without snapshots is never refused for them."""
    how = {"row_bytes": 10, "max_rows": 100, "free_bytes": 1000, "page_bytes": page_bytes}
    assert count_snapshots("auto", **how) == num


def test_more_than_fit_are_refused_with_a_number_that_does():
    with pytest.raises(ConfigError, match="lower --row-snapshots to 50"):
        count_snapshots(101, row_bytes=10, max_rows=2, free_bytes=1000)
