"""The recurrent part of a plan: every element is written, and state lengths are right."""

import random
from dataclasses import fields, is_dataclass

import pytest
import torch
from support.recurrent import PAGE_SIZE, harness_of, saved_recurrent
from support.steps import NO_FLAGS, batch_of

from outrider.models.recurrent import recurrent_plan
from outrider.ops.recurrent.recurrent_rows import NEW_TEXT
from outrider.ops.tree.chain import chain
from outrider.step.fill_plan import fill, resolve_lengths

NODES = 5


@pytest.fixture(scope="module")
def small(folders):
    saved_recurrent(folders["qwen3.5"], "qwen3.5")
    return folders["qwen3.5"]


def views(record):
    """Every tensor of a plan by its dotted name, but the backend's."""
    found = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, torch.Tensor):
            found[field.name] = value
        elif is_dataclass(value) and field.name != "paged":
            found.update({f"{field.name}.{k}": v for k, v in views(value).items()})
    return found


def planned(harness, state_lengths, lengths, chunks):
    """The plan of a step, and the state lengths after it."""
    harness.pool.state_lengths.copy_(torch.tensor(state_lengths))
    for row, length in lengths.items():
        harness.table.lengths[row] = length
    plan = harness.planner.plan(batch_of(lengths, chunks, nodes=NODES), sampling_flags=NO_FLAGS)
    resolve_lengths(plan, harness.table)
    tree = chain(torch.zeros(plan.shape.rows, plan.shape.nodes, dtype=torch.int64))
    fill(plan, tree, table=harness.table, attention=harness.attention, page_size=PAGE_SIZE)
    return plan.attention, harness.pool.state_lengths.tolist()


STEPS = [
    ([0, 28, 5, 4, 99], {2: 5, 1: 30}, {3: (4, [1] * 19), 4: (0, [4, 5])}),
    ([0, 26, 14, 0, 0], {2: 15, 1: 31}, {}),
    ([0, 0, 0, 9, 0], {}, {3: (13, [1] * 40)}),
]


@pytest.mark.parametrize("pad", [1, 4])
@pytest.mark.parametrize("step", STEPS)
def test_fill_writes_every_element_of_every_view(small, pad, step):
    harness = harness_of(small, pad=pad, nodes=NODES)
    clean = {k: v.clone() for k, v in views(planned(harness, *step)[0]).items()}
    assert len(clean) == 2 + 2 + 4
    harness.planner._arena.poison()
    harness.planner.forget()
    for name, view in views(planned(harness, *step)[0]).items():
        assert torch.equal(view, clean[name]), name


def test_states_take_in_what_was_kept_and_stand_before_what_may_be_taken_back(small):
    harness = harness_of(small, nodes=NODES)
    plan, state_lengths = planned(harness, *STEPS[0])
    assert plan.rows.states.rows.tolist() == [2, 1, 3, 4]
    # Row 1 accepted two nodes of the last step; row 4 was another request's, and begins.
    assert plan.rows.states.accepted_counts.tolist() == [0, 2, 0, NEW_TEXT]
    assert plan.rows.states.counts.tolist() == [5, 5, 19, 2]
    assert plan.rows.states.firsts.tolist() == [0, 5, 10, 29]
    assert state_lengths == [0, 30, 5, 23, 2]


def test_padding_leaves_row_0_where_it_is(small):
    plan, state_lengths = planned(harness_of(small, pad=4, nodes=NODES), *STEPS[0])
    assert plan.rows.states.rows.tolist() == [2, 1, 0, 0, 3, 4, 0, 0]
    assert plan.rows.states.accepted_counts.tolist() == [
        0,
        2,
        NEW_TEXT,
        NEW_TEXT,
        0,
        NEW_TEXT,
        NEW_TEXT,
        NEW_TEXT,
    ]
    assert state_lengths == [0, 30, 5, 23, 2]


@pytest.mark.fast_cases(1)
@pytest.mark.skipif(torch.cuda.is_available(), reason="compiled with the engine in tests/gpu")
@pytest.mark.parametrize("pad", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_the_kernels_write_what_the_reference_writes(small, pad, seed, monkeypatch):
    rng, harness = random.Random(seed), harness_of(small, pad=pad, nodes=NODES)
    state_lengths = [0, *(rng.randrange(60) for _ in range(4))]
    decodes = {row: rng.randrange(60) for row in rng.sample([1, 2], rng.randrange(3))}
    chunks = {
        row: (rng.choice([0, 15, rng.randrange(40)]), [1] * rng.randint(1, 40))
        for row in rng.sample([3, 4], 2 if not decodes else rng.randrange(3))
    }
    plan, right_lengths = planned(harness, state_lengths, decodes, chunks)
    right = {k: v.clone() for k, v in views(plan).items()}
    harness.planner._arena.poison()
    harness.planner.forget()
    kernels = pytest.importorskip("outrider.ops.recurrent.fill_recurrent_triton")
    monkeypatch.setattr(recurrent_plan, "fill_recurrent", kernels.fill_recurrent_triton)
    plan, found_lengths = planned(harness, state_lengths, decodes, chunks)
    assert found_lengths == right_lengths
    for name, view in views(plan).items():
        assert torch.equal(view, right[name]), name
