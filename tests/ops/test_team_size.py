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


def test_fewer_threads_of_torch_make_a_smaller_team():
    machine = Machine(4)
    machine.run(1000, busy=1)
    machine.cores = 2
    assert set(machine.run(1000, busy=0)) == {2}
