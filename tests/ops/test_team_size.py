"""A team loses a thread whose core others use, and gets it back when they are gone."""

import pytest

pytest.importorskip("numba")

from outrider.ops.compiled.team_size import TeamSize

MS = 2_500_000
STEP = 4 * MS


class Machine:
    """Steps of a team on cores of which some are used by other processes."""

    def __init__(self, cores):
        self.team, self.cores, self.now = TeamSize(), cores, 0
        self.sizes = []

    def run(self, steps, *, busy):
        """Threads on busy cores make a step three times as long: the others wait for them."""
        self.sizes = []
        for _ in range(steps):
            size = self.team.choose(self.cores, now=self.now)
            is_late = size > self.cores - busy and size > 1
            ticks = 3 * STEP if is_late else STEP
            self.now += ticks
            lag = 0 if size == 1 else ticks - STEP if is_late else STEP // 10
            if size > 1:
                self.team.note(ticks, lag=lag, now=self.now)
            self.sizes.append(size)
        return self.sizes


@pytest.mark.parametrize(("cores", "busy"), [(2, 1), (2, 2), (16, 1), (16, 5)])
def test_a_busy_machine_is_left_the_cores_that_it_uses(cores, busy):
    machine = Machine(cores)
    machine.run(200, busy=busy)
    sizes = machine.run(5000, busy=busy)
    free = max(cores - busy, 1)
    assert max(sizes) == free + 1  # a trial
    assert sum(size != free for size in sizes) < 100


def test_the_whole_team_computes_again_when_the_machine_is_quiet():
    machine = Machine(4)
    machine.run(5000, busy=2)
    machine.run(4000, busy=0)
    assert set(machine.run(1000, busy=0)) == {4}


def test_one_late_step_takes_no_thread_away():
    machine = Machine(2)
    for _ in range(50):
        assert set(machine.run(20, busy=0) + machine.run(1, busy=1)) == {2}


def test_a_caller_with_fewer_threads_does_not_give_the_others_theirs_back():
    machine = Machine(4)
    machine.run(2000, busy=1)
    sizes = []
    for _ in range(1000):
        sizes += machine.run(1, busy=1)
        assert machine.team.choose(1, now=machine.now) == 1
    assert sum(size != 3 for size in sizes) < 50


def test_a_thread_is_tried_soon_after_a_short_load_that_follows_a_long_one():
    machine = Machine(2)
    machine.run(20_000, busy=1)
    machine.run(5_000, busy=0)  # a quiet while
    machine.run(50, busy=1)
    assert 2 in machine.run(250 * MS // STEP + 1, busy=0)


def test_fewer_threads_of_torch_make_a_smaller_team():
    machine = Machine(4)
    machine.run(1000, busy=1)
    machine.cores = 2
    assert set(machine.run(1000, busy=0)) == {2}
