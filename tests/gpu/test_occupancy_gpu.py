"""One long request keeps the device busy: the host plans the next step while one runs."""

from benchmarks.steps.bench_engines import build, load_bench_target, no_drafting
from benchmarks.steps.body import find_body
from benchmarks.steps.step_args import Place
from outrider.wire.draft_budget import UNBOUNDED
from outrider.wire.engine_stats import DeviceWork
from outrider.wire.row_sampling import RowSampling
from outrider.wire.submission import Limits, Submission

_PROMPT, _ANSWER = 128, 400


def test_the_device_runs_97_percent_of_the_time_of_one_long_request():
    place = Place(
        device="cuda",
        dtype="bfloat16",
        executor="auto",
        is_deterministic=False,
        step_tokens=1024,
    )
    target = load_bench_target(find_body("llama-8b"), place)
    loaded = build(target, no_drafting(), rows=1, context=_PROMPT + _ANSWER + 8)
    _answer(loaded.engine, "first")  # captures shapes, and compiles kernels
    before = loaded.engine.stats.work
    _answer(loaded.engine, "second")
    assert _occupancy(before, loaded.engine.stats.work) > 0.97


def _answer(engine, name) -> None:
    engine.add(
        Submission(
            request_id=name,
            prompt=tuple(range(1, 1 + _PROMPT)),
            sampling=RowSampling(seed=0, temperature=0.0),
            limits=Limits(max_tokens=_ANSWER, stop_ids=frozenset()),
            budget=UNBOUNDED,
        )
    )
    while engine.has_work:
        engine.step()


def _occupancy(before: DeviceWork, after: DeviceWork) -> float:
    """What the server calls `forward_occupancy`, over the steps in between."""
    return (after.busy_s - before.busy_s) / (after.active_s - before.active_s)
