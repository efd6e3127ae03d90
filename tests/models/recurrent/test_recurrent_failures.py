"""Recurrent models through what goes wrong: steps that fail, requests that leave, odd numbers."""

import random

import pytest
import torch
from support.engines import CollectedOutput, engine_of, make_submission, run_all
from support.faults import FaultyExecutor, break_steps
from support.recurrent import expected_logits, harness_of, prompt
from support.row_matrix import (
    CHAIN,
    MAX_TOKENS,
    PROMPTS,
    ask_all,
    right_answer,
    sampling_of,
    shape_of,
)

from outrider.wire.draft_budget import Budget

NO_NUMBER = float("nan")


def spoil(pool, rows):
    """Fill all row state with NaN, and state lengths with any number."""
    pool.state_lengths.index_fill_(0, rows, 7)
    for store in pool._states:
        rings = store.window.view(store.state.shape[0], -1, store.window.shape[1])
        for part in (rings, store.node_inputs, store.state):
            part.index_fill_(0, rows, NO_NUMBER)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("where", [{"at_submit": {4}}, {"at_wait": {4}}], ids=str)
def test_after_a_step_that_failed_the_others_get_their_tokens(
    theirs, target, monkeypatch, depth, where
):
    def leave_broken_rows(executor, rows):
        spoil(executor._state.kv, rows)

    monkeypatch.setattr(FaultyExecutor, "_break", leave_broken_rows)
    engine = engine_of(target, shape_of(CHAIN, chunk=7, depth=depth, pad=3, max_rows=2), CHAIN)
    break_steps(engine, **where)
    outputs = run_all(engine, ask_all("sampled", 2 * PROMPTS))
    assert sorted(name for name, each in outputs.items() if each.last.finish == "error") == [
        "r0",
        "r1",
    ]
    for i in range(2, 2 * len(PROMPTS)):
        assert outputs[f"r{i}"].tokens == right_answer(theirs, "sampled", i % len(PROMPTS))


def test_what_a_former_owner_left_is_never_read_even_if_it_is_no_number(theirs, folder):
    """Row 0 takes the writes of padding and of the beginnings of chunks."""
    harness, tokens = harness_of(folder, nodes=3, pad=3), prompt(20)
    spoil(harness.pool, torch.tensor([0, 1]))
    right = expected_logits(theirs, tokens)
    logits = harness.run({}, {1: (0, tokens[:14])})
    torch.testing.assert_close(logits[:14], right[:14], rtol=0, atol=1e-4)
    logits = harness.run({1: (14, tokens[14:17])}, {}, nodes=3)
    torch.testing.assert_close(logits[:3], right[14:17], rtol=0, atol=1e-4)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("seed", range(4))
def test_requests_that_leave_and_budgets_of_their_own_change_no_tokens(theirs, target, seed):
    rng, shape = random.Random(seed), {"depth": seed % 2, "pad": 3, "max_rows": 2}
    kv_tokens = (96, 1024)[seed // 2]  # few pages: some are preempted, too
    engine = engine_of(target, shape_of(CHAIN, chunk=7, kv_tokens=kv_tokens, **shape), CHAIN)
    names = [f"r{i}" for i in range(10)]
    for i, name in enumerate(names):
        nodes = rng.choice([1, 2, 4, 6])
        budget = Budget(steps=nodes - 1, topk=1, nodes=nodes)
        sampling, text = sampling_of("sampled"), PROMPTS[i % len(PROMPTS)]
        engine.add(make_submission(name, text, sampling, max_tokens=MAX_TOKENS, budget=budget))
    outputs, left = {}, set()
    while engine.has_work:
        for update in engine.step():
            entry = outputs.setdefault(update.request_id, CollectedOutput([], [], update))
            entry.tokens += update.tokens
        if rng.random() < 0.1 and len(left) < 4:
            leaver = rng.choice(names)
            left.add(leaver)
            engine.abort(leaver)
    for i, name in enumerate(names):
        right = right_answer(theirs, "sampled", i % len(PROMPTS))
        got = outputs[name].tokens if name in outputs else []
        assert got == (right[: len(got)] if name in left else right), name
    assert left
