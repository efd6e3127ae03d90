"""The host plans by bounds: whole answers come out right although no length can be read there."""

import pytest
import torch
from support.engines import Shape, ask, engine_of, run_all
from support.matrix import LAWS, MAX_TOKENS, PROMPTS, TREES, right_answer

HOST_READS = {"item", "tolist", "numpy", "cpu", "__int__", "__float__", "__bool__", "__index__"}


class Untouchable(torch.Tensor):
    """Device operations work on it and give plain tensors; reading it on the host raises."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func.__name__ in HOST_READS:
            raise AssertionError(f"the host read a length by {func.__name__}")
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def test_the_object_really_raises():
    with pytest.raises(AssertionError, match="read a length"):
        torch.tensor([1]).as_subclass(Untouchable).tolist()


@pytest.mark.parametrize("drafter", ["none", "relative"])
@pytest.mark.parametrize("law", LAWS)
def test_nothing_reads_a_length_on_the_host(models, law, drafter):
    engine = engine_of(models.target, Shape(depth=1), models.draft(drafter, TREES["tree"]))
    rows = engine._runner._state.rows
    rows.lengths = rows.lengths.as_subclass(Untouchable)
    asked = [
        ask(f"r{i}", prompt, LAWS[law], max_tokens=MAX_TOKENS) for i, prompt in enumerate(PROMPTS)
    ]
    heard = run_all(engine, asked)
    for i in range(len(PROMPTS)):
        assert heard[f"r{i}"].tokens == right_answer(models.theirs, law, i).tokens
