"""Runs requests through an engine whose steps fail, beside one whose steps do not."""

from collections.abc import Collection

import pytest
import torch

from outrider.engine.engine import Engine
from outrider.runtime.draft_kinds import DraftKind
from support.engines import CollectedOutput, Shape, engine_of, make_submission, run_all
from support.faults import break_steps
from support.matrix import MAX_TOKENS, MIXED, PROMPTS, Models, sampling_of


def make_submissions() -> list:
    """More requests than rows; the second half shares the prompts of the first."""
    return [
        make_submission(f"r{i}", prompt, sampling_of(MIXED, i), max_tokens=MAX_TOKENS)
        for i, prompt in enumerate(2 * PROMPTS)
    ]


def check_recovery(
    models: Models,
    shape: Shape,
    draft: DraftKind,
    *,
    at_submit: Collection[int] = (),
    at_wait: Collection[int] = (),
) -> tuple[Engine, dict[str, CollectedOutput]]:
    """Whoever ends has the tokens of the undisturbed engine; nothing leaks or stays broken."""
    undisturbed = run_all(engine_of(models.target, shape, draft), make_submissions())
    engine = engine_of(models.target, shape, draft)
    fresh = (engine._scheduler.cache.num_available, sorted(engine._scheduler._free_rows))
    break_steps(engine, at_submit=at_submit, at_wait=at_wait)
    outputs = run_all(engine, make_submissions())
    for name, right in undisturbed.items():
        got = outputs[name]
        is_failed = got.last.finish == "error"
        assert got.last.finish in ("error", right.last.finish)
        assert bool(got.last.reason) == is_failed
        assert got.tokens == (right.tokens[: len(got.tokens)] if is_failed else right.tokens)
        assert got.logprobs == pytest.approx(right.logprobs[: len(got.logprobs)], abs=1e-3)
    assert engine.num_failed_steps == len({*at_submit, *at_wait})
    left = (engine._scheduler.cache.num_available, sorted(engine._scheduler._free_rows))
    assert left == fresh
    for pool in engine._runner._program.state.pages._pools:
        assert all(torch.isfinite(layer).all() for layer in pool.layers)
    return engine, outputs


def failed(outputs: dict[str, CollectedOutput]) -> list[str]:
    return sorted(name for name, each in outputs.items() if each.last.finish == "error")
