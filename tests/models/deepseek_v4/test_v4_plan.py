"""Every element of DeepSeek-V4's part of a plan is written by fill; padding writes to no row."""

import random
from dataclasses import fields, is_dataclass

import pytest
import torch
from support.steps import NO_FLAGS, batch_of
from support.v4 import PAGE_SIZE, harness_of

from outrider.models.deepseek_v4 import compressed_plan
from outrider.ops.tree.chain import chain
from outrider.step.fill_plan import fill, resolve_lengths

NODES = 5


def views(record):
    """Every tensor of a plan by its dotted name."""
    found = {}
    for field in fields(record):
        value = getattr(record, field.name)
        for index, part in enumerate(value if isinstance(value, tuple) else (value,)):
            if isinstance(part, torch.Tensor):
                found[field.name] = part
            elif is_dataclass(part):
                found.update({f"{field.name}.{index}.{k}": v for k, v in views(part).items()})
    return found


def planned(harness, lengths, chunks):
    for row, length in lengths.items():
        harness.table.lengths[row] = length
    plan = harness.planner.plan(batch_of(lengths, chunks, nodes=NODES), sampling_flags=NO_FLAGS)
    resolve_lengths(plan, harness.table)
    tree = chain(torch.zeros(plan.shape.rows, plan.shape.nodes, dtype=torch.int64))
    fill(plan, tree, table=harness.table, attention=harness.attention, page_size=PAGE_SIZE)
    return plan.attention.index


STEPS = [
    ({2: 5, 1: 30}, {3: (4, [1] * 19), 4: (0, [4, 5])}),
    ({2: 15, 1: 31}, {}),
    ({}, {3: (13, [1] * 40)}),
]


@pytest.mark.parametrize("pad", [1, 4])
@pytest.mark.parametrize("step", STEPS)
def test_fill_writes_every_element_of_every_view(folder, pad, step):
    harness = harness_of(folder, pad=pad, nodes=NODES)
    clean = {k: v.clone() for k, v in views(planned(harness, *step)).items()}
    assert len(clean) == 3 + 2 + 2 * 5
    harness.planner._arena.poison()
    harness.planner.forget()
    for name, view in views(planned(harness, *step)).items():
        assert torch.equal(view, clean[name]), name


@pytest.mark.fast_cases(1)
@pytest.mark.skipif(torch.cuda.is_available(), reason="compiled with the engine in tests/gpu")
@pytest.mark.parametrize("pad", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_the_kernels_write_what_the_reference_writes(folder, pad, seed, monkeypatch):
    pytest.importorskip("triton")
    rng, harness = random.Random(seed), harness_of(folder, pad=pad, nodes=NODES)
    decodes = {row: rng.randrange(90) for row in rng.sample([1, 2], rng.randrange(3))}
    chunks = {
        row: (rng.choice([0, 15, 16, rng.randrange(40)]), [1] * rng.randint(1, 40))
        for row in rng.sample([3, 4], 2 if not decodes else rng.randrange(3))
    }
    right = {k: v.clone() for k, v in views(planned(harness, decodes, chunks)).items()}
    harness.planner._arena.poison()
    harness.planner.forget()
    kernels = pytest.importorskip("outrider.ops.sparse.fill_compressed_triton")
    monkeypatch.setattr(compressed_plan, "fill_compressed", kernels.fill_compressed_triton)
    for name, view in views(planned(harness, decodes, chunks)).items():
        assert torch.equal(view, right[name]), name


@pytest.mark.parametrize("seed", range(3))
def test_no_row_writes_to_slots_of_another(folder, seed):
    """Each slot of ring buffers and entries is written once, except in row 0 and page 0."""
    rng, harness = random.Random(seed), harness_of(folder, pad=4, nodes=NODES)
    plan = planned(
        harness,
        {1: rng.randrange(60), 3: rng.randrange(60)},
        {2: (rng.randrange(60), [1] * 40), 4: (rng.randrange(20), [1] * rng.randint(1, 9))},
    )
    layout = harness.pool.layout
    for part, window in [
        (plan.window.ring, 8),
        *((b.ring, b.ring.sources.shape[1]) for b in plan.blocks),
    ]:
        real = part.writes[part.writes >= layout.ring_length(window)]
        assert real.unique().shape == real.shape
        assert part.writes.max() < layout.ring_length(window) * 5
    for part, kind in zip(plan.blocks, layout.blocks, strict=True):
        real = part.targets[part.targets >= PAGE_SIZE // kind.ratio]
        assert real.unique().shape == real.shape


def test_a_chunk_ends_every_block_it_reaches_the_end_of(folder):
    harness = harness_of(folder, nodes=NODES)
    plan = planned(harness, {1: 14}, {2: (5, [1] * 12)})
    starts = [part.starts[part.targets > 0].tolist() for part in plan.blocks]
    # Row 1 runs 14 to 18, row 2 runs 5 to 16.
    assert starts == [[12, 4, 8, 12], [0, 0]]
    assert plan.blocks[0].counts.tolist() == [3, 4, 4, 4, 4, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4]
