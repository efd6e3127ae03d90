"""The host plans by bounds: whole answers come out right although no length can be read there."""

from dataclasses import fields

import pytest
import torch
from support.engines import Shape, engine_of, make_submission, run_all
from support.matrix import MAX_TOKENS, PROMPTS, SAMPLINGS, TREES, right_answer, sampling_of

from outrider.config.attention_choice import HOST_LENGTHS
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
    """The output of a step follows from lengths; the host reads it after the output copy."""
    copy_to_host = runner.copy_to_host

    def plain(packed):
        copy = copy_to_host(packed)
        columns = {f.name: getattr(copy, f.name).as_subclass(torch.Tensor) for f in fields(copy)}
        return type(copy)(**columns)

    monkeypatch.setattr(runner, "copy_to_host", plain)


def test_the_object_really_raises():
    with pytest.raises(AssertionError, match="read a length"):
        (torch.tensor([1]).as_subclass(Untouchable) + 1)[:1].tolist()


@pytest.mark.parametrize("drafter", ["none", "relative", "eagle3"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_nothing_reads_a_length_on_the_host(models, monkeypatch, sampling, drafter):
    result_may_be_read(monkeypatch)
    engine = engine_of(models.target, Shape(depth=1), models.draft(drafter, TREES["tree"]))
    rows = engine._runner._program.state.rows
    rows.lengths = rows.lengths.as_subclass(Untouchable)
    submissions = [
        make_submission(f"r{i}", prompt, sampling_of(sampling, i), max_tokens=MAX_TOKENS)
        for i, prompt in enumerate(PROMPTS)
    ]
    outputs = run_all(engine, submissions)
    for i in range(len(PROMPTS)):
        assert outputs[f"r{i}"].tokens == right_answer(models.theirs, sampling, i).tokens


@pytest.mark.parametrize("depth", [0, 1])
def test_the_host_knows_the_lengths_that_the_table_says(models, monkeypatch, depth):
    """On a CPU a step has run when the next is planned, so the test may read true lengths."""
    engine = engine_of(
        models.target, Shape(depth=depth, step_tokens=19), models.draft("relative", TREES["chain"])
    )
    runner, known = engine._runner, {"decode": True, "chunk": True}
    lengths, submit = runner._program.state.rows.lengths, runner.submit

    def compare(batch):
        bounds = zip(batch.decodes.rows, batch.decodes.bounds, strict=True)
        known["decode"] &= all(int(lengths[row]) == bound for row, bound in bounds)
        later = [chunk for chunk in batch.chunks if chunk.start]  # the first sets the length
        known["chunk"] &= all(int(lengths[chunk.row]) == chunk.start for chunk in later)
        num_later.append(len(later))
        return submit(batch)

    num_later: list[int] = []
    monkeypatch.setattr(runner, "submit", compare)
    prompts = [*PROMPTS, [7] * 40]
    run_all(
        engine, [make_submission(str(i), p, SAMPLINGS["greedy"]) for i, p in enumerate(prompts)]
    )
    assert sum(num_later) > 0
    for (_, kind), by_depth in HOST_LENGTHS.items():
        assert known[kind] == by_depth[depth], kind
