"""Random windows of draft modules, by the kernels on any device and by the torch law on the CPU."""

import random
from dataclasses import replace

import torch

from outrider.spec import mtp_window as law
from outrider.spec.drafter import StepOutcome
from outrider.spec.mtp_plans import WindowPlanner
from outrider.step.draft_tree import VerifyResult
from outrider.step.fill_plan import resolve_lengths
from support.step_kernels import assert_same, moved
from support.steps import NO_FLAGS, batch_of, small_device

TABLE_ROWS = 10


def random_round(rng: random.Random, *, num_modules: int, steps: int, size: int):
    """A step of decoding rows, some of them padding, and what every row remembers."""
    nodes, pad = steps + 1, rng.choice([1, 2, 5])
    device = small_device(rng, page_size=rng.choice([1, 4, 16]), nodes=nodes, pad=pad, rows=9)
    lengths = {row: rng.randint(1, 30) for row in rng.sample(range(1, 10), rng.randint(1, 9))}
    for row, length in lengths.items():
        device.table.lengths[row] = length
    plan = device.planner.plan(batch_of(lengths, {}, nodes=nodes), sampling_flags=NO_FLAGS)
    resolve_lengths(plan, device.table)
    planner = WindowPlanner(
        device.attention, plan.shape, num_modules=num_modules, device=torch.device("cpu")
    )
    catch_up = planner.bind(plan.shape, plan.decode, plan.chunk).catch_up
    return (
        plan,
        catch_up,
        random_outcome(rng, plan, size),
        random_memory(rng, lengths, num_modules, size),
    )


def random_outcome(rng, plan, size):
    """Paths of every length down a chain."""
    rows, nodes = plan.shape.rows, plan.shape.nodes
    generator = torch.Generator().manual_seed(rng.randrange(1000))
    num_accepted = torch.tensor([rng.randint(0, nodes - 1) for _ in range(rows)])
    path = torch.minimum(torch.arange(nodes)[None], num_accepted[:, None])
    emitted = torch.randint(1, 99, (rows, nodes), generator=generator).gather(1, path)
    aux_hidden_states = torch.randn(rows * nodes, size, generator=generator)
    verify_result = VerifyResult(
        path=path, num_accepted=num_accepted, emitted=emitted, drafted=num_accepted
    )
    return StepOutcome(
        aux_hidden_states=aux_hidden_states,
        verify_result=verify_result,
        chunk_choice=torch.empty(0, dtype=torch.int64),
    )


def random_memory(rng, lengths, num_modules, size):
    memory = law.make_memory(rows=TABLE_ROWS, room=num_modules - 1, width=size, like=torch.empty(0))
    memory.pairs.tokens.random_(1, 99)
    memory.pairs.aux_hidden_states.normal_()
    for row, length in lengths.items():
        memory.num[row] = rng.randint(0, min(length, num_modules - 1))
    return memory


def check_windows(seed: int, device: str, *, size: int = 37) -> None:
    """One catch-up without chunks: all that modules read, and all that is remembered."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    num_modules, steps = rng.randint(2, 6), rng.randint(0, 6)
    steps = min(steps, num_modules)
    plan, catch_up, outcome, memory = random_round(
        rng, num_modules=num_modules, steps=steps, size=size
    )
    ours = moved((plan.decode, plan.chunk, catch_up.decode, catch_up.queries), device)
    plan_there, catch_up_there = _on(plan, ours[:2]), _on(catch_up, ours[2:])
    outcome_there, memory_there = moved(outcome, device), moved(memory, device)
    right = law.see(memory, plan, outcome, catch_up, num_modules)
    found = law._see_on_gpu(memory_there, plan_there, outcome_there, catch_up_there, num_modules)
    assert_same(found.windows, right.windows)
    for name in ("tokens", "depths", "ancestors"):
        assert_same(getattr(found.nodes, name), getattr(right.nodes, name), name)
    assert_same(found.is_idle, right.is_idle, "is_idle")
    assert_same(found.aux_hidden_states, right.aux_hidden_states, "features")
    assert_same(catch_up_there.decode.rows, catch_up.decode.rows, "rows")
    assert_same(catch_up_there.decode.lengths, catch_up.decode.lengths, "lengths")
    _check_memory(memory_there, memory, plan.decode.rows)
    _check_taking(rng, found, right, catch_up_there, catch_up, num_modules, device)


def _check_memory(found, right, rows) -> None:
    """What counts as remembered is the same; row 0 remembers nothing."""
    assert_same(found.num, right.num, "num")
    assert int(found.num[0]) == 0
    room = right.pairs.tokens.shape[1]
    for row in set(rows.tolist()) - {0}:
        newest = slice(room - int(right.num[row]), room)
        assert_same(found.pairs.tokens[row, newest], right.pairs.tokens[row, newest], "pairs")
        assert_same(
            found.pairs.aux_hidden_states[row, newest],
            right.pairs.aux_hidden_states[row, newest],
            "pairs",
        )


def _check_taking(rng, found, right, catch_up_there, catch_up, num_modules, device) -> None:
    """Module by module: drafts are noted, and the next one runs them."""
    from outrider.ops.tree.mtp_window_triton import take

    drafts = torch.zeros(TABLE_ROWS, num_modules, dtype=torch.int64)
    drafts_there = drafts.clone().to(device)
    for module in range(num_modules):
        tokens = torch.tensor([rng.randrange(99) for _ in range(right.windows.first.shape[0])])
        law.take(tokens, module, right, catch_up, drafts)
        facts = found.windows.num_known, found.windows.first
        rows, queries = catch_up_there.decode.rows, catch_up_there.queries.tokens
        take(tokens.to(device), found.windows.tokens, facts, rows, drafts_there, queries, module)
        real = ~right.is_idle.flatten()
        assert_same(queries[real.to(device)], catch_up.queries.tokens[real], "queries")
        assert_same(drafts_there[1:], drafts[1:], "drafts")


def _on(plan, parts):
    """A plan with some of its parts elsewhere."""
    names = {"DecodeRows": "decode", "ChunkRows": "chunk", "Queries": "queries"}
    return replace(plan, **{names[type(part).__name__]: part for part in parts})
