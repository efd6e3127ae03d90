"""A step that takes too long is reported once, while it is still waited for."""

import gc
import logging
import threading
import weakref
from dataclasses import replace

import pytest
from support.engines import Shape, engine_of, make_submission
from support.matrix import sampling_of

from outrider.runtime.watchdog import Watchdog
from outrider.step.device_stream import HostEvent
from outrider.step.executor import EagerExecutor
from outrider.step.shape import ChunkShape, SamplingFlags, StepShape
from outrider.wire.draft_budget import PLAIN

SHAPE = StepShape(
    rows=3,
    tree=PLAIN,
    chunk=ChunkShape(rows=0, tokens=0, width=0),
    pages=2,
    sampling_flags=SamplingFlags(),
)
LONG_S = 20.0  # nothing here takes a second unless it is broken


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def watchdog(clock):
    return Watchdog(timeout_s=60.0, clock=clock)


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.ERROR, logger="outrider.runtime.watchdog")
    return lambda: [record.getMessage() for record in caplog.records]


def test_an_overdue_step_is_reported_with_its_number_its_shape_and_what_to_do(
    watchdog, clock, lines
):
    watchdog.begin(17, SHAPE)
    clock.now += 59.0
    watchdog.look()
    assert lines() == []
    clock.now += 1.0
    watchdog.look()
    (line,) = lines()
    assert "step 17" in line
    assert "60 s" in line
    assert "rows=3" in line
    assert "restart the process" in line
    assert watchdog.num_hung == 1


def test_a_step_is_reported_once_and_another_one_again(watchdog, clock, lines):
    for step in (5, 6):
        watchdog.begin(step, SHAPE)
        for _ in range(3):
            clock.now += 61.0
            watchdog.look()
        watchdog.end()
    assert [line.split()[1] for line in lines()] == ["5", "6"]
    assert watchdog.num_hung == 2


def test_nothing_is_overdue_while_no_step_is_waited_for(watchdog, clock, lines):
    watchdog.begin(5, SHAPE)
    watchdog.end()
    clock.now += 1000.0
    watchdog.look()
    assert lines() == []


@pytest.mark.slow
def test_the_thread_begins_with_the_first_wait_and_ends_with_its_owner():
    before = set(threading.enumerate())
    watchdog = Watchdog(timeout_s=0.004)
    assert set(threading.enumerate()) == before
    for step in (1, 2):
        watchdog.begin(step, SHAPE)
        watchdog.end()
    (thread,) = set(threading.enumerate()) - before
    assert thread.daemon
    gone = weakref.ref(watchdog)
    del watchdog
    thread.join(LONG_S)
    gc.collect()
    assert not thread.is_alive()
    assert gone() is None


class Hanging(HostEvent):
    """The event of a step that ends only after the watchdog has reported it."""

    def __init__(self, complained):
        super().__init__()
        self._complained = complained

    def wait(self):
        assert self._complained.wait(LONG_S), "the watchdog reported nothing"


@pytest.fixture
def complained():
    """Set once the watchdog has reported anything."""
    reported = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record):
            reported.set()

    logger, listener = logging.getLogger("outrider.runtime.watchdog"), Listener()
    logger.addHandler(listener)
    yield reported
    logger.removeHandler(listener)


def run_hanging(engine):
    """One step, which comes home in the end."""
    engine._runner.watchdog = Watchdog(timeout_s=0.01)
    engine.add(make_submission("a", [3, 4, 5], sampling_of("greedy", 0), max_tokens=1))
    (update,) = engine.step()
    assert update.finish == "length"
    assert engine._runner.watchdog.num_hung == 1


def test_a_hanging_step_of_a_real_engine_is_reported_while_it_is_waited_for(models, complained):
    engine = engine_of(models.target, Shape())
    submit = engine._runner.submit

    def submit_hanging(batch):
        pending = submit(batch)
        pending._output = replace(pending._output, ready=Hanging(complained))
        return pending

    engine._runner.submit = submit_hanging
    run_hanging(engine)


def test_a_step_that_hangs_while_it_is_submitted_is_reported_too(models, complained):
    """A grammar waits for the device inside a step, and so does a launch when too many wait."""
    engine = engine_of(models.target, Shape())

    class HangingExecutor(EagerExecutor):
        def run(self, program, plan):
            Hanging(complained).wait()
            return super().run(program, plan)

    engine._runner._executor = HangingExecutor()
    run_hanging(engine)
