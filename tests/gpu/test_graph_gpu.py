"""Recordings: what they hold, where they break, and that the host never waits in a steady loop."""

import pytest
import torch
from support.engines import Shape, engine_of, make_submission
from support.matrix import PROMPTS, TREES, sampling_of
from support.model_set import make_models

from outrider.ops.graph_break import graph_break
from outrider.step.graph_executor import GraphExecutor
from outrider.step.shape import ChunkShape, SamplingFlags, StepShape
from outrider.wire.draft_budget import PLAIN


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return make_models(tmp_path_factory.mktemp("models"), "cuda")


class Plan:
    """What an executor looks at: a shape of decoding rows, and inputs at fixed addresses."""

    def __init__(self, values):
        chunk = ChunkShape(rows=0, tokens=0, width=0)
        self.shape = StepShape(
            rows=len(values), tree=PLAIN, chunk=chunk, pages=1, sampling_flags=SamplingFlags()
        )
        self.x = torch.tensor(values, device="cuda")


@pytest.fixture
def stream():
    with torch.cuda.stream(torch.cuda.Stream()):
        yield


def test_a_replay_computes_from_what_the_inputs_hold_now(stream):
    executor, plan = GraphExecutor(lambda shape: True), Plan([1.0, 2.0])
    state = torch.zeros(2, device="cuda")

    def program(plan):
        state.add_(plan.x)
        return state * 2

    results = []
    for value in (1.0, 10.0, 100.0):
        plan.x.fill_(value)
        results.append(executor.run(program, plan).tolist())
    assert results == [[2, 2], [22, 22], [222, 222]]
    assert (executor.num_graphs, executor.num_eager) == (1, 1)


def test_a_shape_that_keeps_coming_gets_a_graph_of_its_own(stream):
    executor = GraphExecutor(lambda shape: True)
    large, small = Plan([1.0] * 640), Plan([1.0] * 512)
    executor.run(lambda plan: plan.x * 2, large)
    covers = [executor.cover(small.shape) for _ in range(17)]
    assert covers == [large.shape] * 16 + [small.shape]
    executor.run(lambda plan: plan.x * 2, small)
    assert executor.cover(small.shape) == small.shape
    assert (executor.num_graphs, executor.num_eager) == (2, 2)


@pytest.mark.parametrize("do_all_agree", [True, False])
def test_a_capture_is_kept_only_if_all_ranks_have_it(stream, do_all_agree):
    votes = []

    def agree(is_captured):
        votes.append(is_captured)
        return do_all_agree

    executor, plan = GraphExecutor(lambda shape: True, agree), Plan([1.0, 2.0])
    for _ in range(3):
        executor.run(lambda plan: plan.x * 2, plan)
    assert votes == [True]
    assert executor.num_graphs == int(do_all_agree)
    assert executor.num_eager == (1 if do_all_agree else 3)


def test_a_live_call_breaks_the_recording_and_is_made_anew(stream):
    executor, plan, said = GraphExecutor(lambda shape: True), Plan([1.0]), []

    def add_what_the_host_says(goal):
        said.append(len(said) + 1)
        goal.add_(said[-1])

    def program(plan):
        doubled = plan.x * 2
        graph_break(add_what_the_host_says, doubled)
        return doubled + 0.5

    # 1 * 2 + n + 0.5, where n counts the calls; recording makes none
    assert [executor.run(program, plan).item() for _ in range(3)] == [3.5, 4.5, 5.5]
    assert executor._graphs[plan.shape].num_breaks == 1


def test_borrowed_memory_is_not_kept_from_later_operations(stream):
    executor, plan = GraphExecutor(lambda shape: True), Plan([1.0] * 4096)

    def double(source, goal):
        torch.mul(source, 2, out=goal)

    def program(plan):
        value = plan.x
        for _ in range(20):
            source, goal = value + 1, torch.empty_like(value)
            graph_break(double, source, goal)
            value = goal
        return value

    eager = program(plan).clone()
    for _ in range(3):
        out = executor.run(program, plan)
    assert torch.equal(out, eager)


@pytest.mark.parametrize("executor", ["graph", "breakable"])
@pytest.mark.parametrize(("drafter", "tree"), [("none", "chain"), ("eagle3", "tree")])
def test_a_steady_loop_never_waits_for_the_device(models, drafter, tree, executor):
    shape = Shape(device="cuda", pad=4, depth=1, step_tokens=90, executor=executor, page_size=4)
    engine = engine_of(models.target, shape, models.draft(drafter, TREES[tree]))
    sampling = sampling_of("greedy", 0)
    for index, prompt in enumerate(PROMPTS):
        engine.add(make_submission(f"r{index}", prompt, sampling, max_tokens=60))
    for _ in range(12):
        engine.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        outputs = [update for _ in range(8) for update in engine.step()]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert sum(len(update.tokens) for update in outputs) >= 8
    assert 0 < engine._runner.occupancy.share <= 1.0


def test_steps_with_chunks_are_captured_without_breaks(models):
    shape = Shape(device="cuda", pad=16, depth=0, step_tokens=64, executor="breakable")
    engine = engine_of(models.target, shape)
    executor = engine._runner._executor
    for index in range(3):
        engine.add(make_submission(f"r{index}", PROMPTS[3], sampling_of("greedy", 0), max_tokens=3))
        while engine.has_work:
            engine.step()
    chunked = [r for shape, r in executor._graphs.items() if shape.chunk.rows]
    decode = [r for shape, r in executor._graphs.items() if not shape.chunk.rows]
    assert {recording.num_breaks for recording in chunked} == {0}
    assert {recording.num_breaks for recording in decode} == {0}
