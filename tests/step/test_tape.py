from types import SimpleNamespace

import pytest
import torch

from outrider.ops.graph_break import graph_break
from outrider.step.tape_executor import TapeExecutor


def plan_of(values):
    """What an executor looks at: a hashable shape, and inputs at fixed addresses."""
    return SimpleNamespace(shape=len(values), x=torch.tensor(values))


def test_replay_computes_from_what_the_inputs_hold_now():
    tape, plan, state = TapeExecutor(), plan_of([1.0, 2.0]), torch.zeros(2)

    def program(plan):
        doubled = plan.x * 2
        state.add_(doubled[:1])
        return (doubled.view(2, 1) + 1).squeeze(1), state

    assert tape.run(program, plan)[0].tolist() == [3, 5]
    plan.x.copy_(torch.tensor([10.0, 20.0]))
    out, seen = tape.run(program, plan)
    assert out.tolist() == [21, 41]
    assert seen.tolist() == [22, 22]


@torch.inference_mode()
def test_a_reshape_that_has_to_copy_is_refreshed_like_any_other_result():
    tape, plan = TapeExecutor(), plan_of([[1.0, 2.0], [3.0, 4.0]])

    def program(plan):
        return plan.x.transpose(0, 1).reshape(4)

    tape.run(program, plan)
    plan.x.copy_(torch.tensor([[5.0, 6.0], [7.0, 8.0]]))
    assert tape.run(program, plan).tolist() == [5, 7, 6, 8]


def test_replay_runs_no_python_of_the_program():
    tape, plan, calls = TapeExecutor(), plan_of([1.0]), []

    def program(plan):
        calls.append(1)
        return plan.x + 1

    tape.run(program, plan)
    tape.run(program, plan)
    assert calls == [1]


def test_a_host_value_read_in_the_first_run_stays_frozen():
    tape, plan, host = TapeExecutor(), plan_of([1.0]), {"scale": 2.0}

    def program(plan):
        return plan.x * host["scale"]

    tape.run(program, plan)
    host["scale"] = 100.0
    assert tape.run(program, plan).item() == 2.0  # a graph would do the same; equality tests see it


@pytest.mark.parametrize(
    "read", [lambda x: x.item(), lambda x: int(x[0]), lambda x: bool(x > 0), lambda x: float(x)]
)
def test_reading_a_device_value_on_the_host_is_refused(read):
    plan = plan_of([1.0])
    with pytest.raises(RuntimeError, match="on the host"):
        TapeExecutor().run(lambda plan: read(plan.x), plan)


def test_shapes_have_tapes_of_their_own():
    tape = TapeExecutor()

    def program(plan):
        return plan.x.sum()

    assert tape.run(program, plan_of([1.0])).item() == 1
    assert tape.run(program, plan_of([1.0, 2.0])).item() == 3


def test_a_live_call_is_made_anew_on_every_replay():
    calls, total = [], torch.zeros(2)

    def add_what_the_host_says(goal):
        calls.append(len(calls) + 1)
        goal.add_(calls[-1])

    def program(plan):
        doubled = total * 2
        graph_break(add_what_the_host_says, doubled)
        total.copy_(doubled)

    executor, plan = TapeExecutor(), plan_of([0.0])
    for _ in range(3):
        executor.run(program, plan)
    # ((0 * 2 + 1) * 2 + 2) * 2 + 3
    assert total.tolist() == [11, 11]
