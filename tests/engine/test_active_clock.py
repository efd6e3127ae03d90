"""The time in which an engine has requests, which `forward_occupancy` divides by."""

import random
import time

import pytest
from support.paper import PaperRunner, facts, submission

from outrider.engine.engine import Engine

_IDLE_S = 0.02


def engine_on_paper(**sizes) -> Engine:
    known = facts(**sizes)
    return Engine(PaperRunner(known, random.Random(1)), known)


def active_s(engine: Engine) -> float:
    return engine.stats.work.active_s


def grows(engine: Engine) -> bool:
    """Whether time counts that passes without a step."""
    before = active_s(engine)
    time.sleep(_IDLE_S)
    return active_s(engine) > before


@pytest.mark.parametrize("depth", [0, 1])
def test_time_counts_from_the_first_request_to_the_last_token(depth):
    engine = engine_on_paper(depth=depth)
    assert not grows(engine)
    engine.add(submission("a", [1, 2, 3], max_tokens=5))
    assert grows(engine)
    while engine.has_work:
        engine.step()
    assert not grows(engine)


def test_idle_time_is_not_added_when_the_next_request_comes():
    engine = engine_on_paper()
    began_s = time.perf_counter()
    for name in ("a", "b"):
        engine.add(submission(name, [1, 2, 3], max_tokens=2))
        while engine.has_work:
            engine.step()
        time.sleep(_IDLE_S)  # no stats are read here
    total_s = time.perf_counter() - began_s
    assert 0 < active_s(engine) <= total_s - 2 * _IDLE_S


def test_an_aborted_request_ends_the_time():
    engine = engine_on_paper()
    engine.add(submission("a", [1, 2, 3], max_tokens=50))
    engine.step()
    engine.abort("a")
    while engine.has_work:
        engine.step()
    assert not grows(engine)
