"""The host plans by bounds: whole answers come out right although no length can be read there."""

from dataclasses import fields

import pytest
import torch
from support.engines import Shape, ask, engine_of, run_all
from support.matrix import MAX_TOKENS, PROMPTS, SAMPLINGS, TREES, right_answer, sampling_of

from outrider.runtime import runner

HOST_READS = {"item", "tolist", "numpy", "cpu", "__int__", "__float__", "__bool__", "__index__"}


class Untouchable(torch.Tensor):
    """Reading it, or anything computed from it, on the host raises."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func.__name__ in HOST_READS:
            raise AssertionError(f"the host read a length by {func.__name__}")
        return super().__torch_function__(func, types, args, kwargs)


def result_may_be_read(monkeypatch):
    """What a step emitted follows from lengths, of course; once it is sent home it is read."""
    copy_to_host = runner.copy_to_host

    def plain(packed):
        sent = copy_to_host(packed)
        columns = {f.name: getattr(sent, f.name).as_subclass(torch.Tensor) for f in fields(sent)}
        return type(sent)(**columns)

    monkeypatch.setattr(runner, "copy_to_host", plain)


def test_the_object_really_raises():
    with pytest.raises(AssertionError, match="read a length"):
        (torch.tensor([1]).as_subclass(Untouchable) + 1)[:1].tolist()


@pytest.mark.parametrize("drafter", ["none", "relative", "eagle3"])
@pytest.mark.parametrize("law", SAMPLINGS)
def test_nothing_reads_a_length_on_the_host(models, monkeypatch, law, drafter):
    result_may_be_read(monkeypatch)
    engine = engine_of(models.target, Shape(depth=1), models.draft(drafter, TREES["tree"]))
    rows = engine._runner._program.state.rows
    rows.lengths = rows.lengths.as_subclass(Untouchable)
    asked = [
        ask(f"r{i}", prompt, sampling_of(law, i), max_tokens=MAX_TOKENS)
        for i, prompt in enumerate(PROMPTS)
    ]
    heard = run_all(engine, asked)
    for i in range(len(PROMPTS)):
        assert heard[f"r{i}"].tokens == right_answer(models.theirs, law, i).tokens
