"""How many threads torch uses: tests run with one."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class _WholeTeam:
    """Never smaller on a busy machine, so that a test of many threads has them."""

    def choose(self, most: int, *, now: int) -> int:
        del now
        return most

    def note(self, ticks: int, *, lag: int, now: int) -> None:
        pass


@contextmanager
def torch_threads(num: int) -> Iterator[None]:
    """That many threads inside, and as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(num)
    try:
        with _whole_team():
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _whole_team() -> Iterator[None]:
    teams = sys.modules.get("outrider.ops.compiled.thread_team")
    if teams is None:  # nothing is compiled
        yield
        return
    before, teams._team_size = teams._team_size, _WholeTeam()
    try:
        yield
    finally:
        teams._team_size = before
