"""Random draft windows, by the kernels on any device and by the torch reference on the CPU."""

import random
from dataclasses import replace

import torch

from outrider.ops.tree.draft_tree import StepOutcome, VerifyResult
from outrider.ops.tree.mtp_pairs import make_pair_table
from outrider.ops.tree.mtp_window import open_windows_reference, write_drafts_reference
from outrider.spec.mtp_plans import WindowPlanner
from outrider.step.fill_plan import resolve_lengths
from support.step_kernels import assert_same, moved
from support.steps import NO_FLAGS, batch_of, small_device

TABLE_ROWS = 10


def random_round(rng: random.Random, *, num_modules: int, steps: int, size: int):
    """A step of decode rows, some of them padding, and the stored pairs of every row."""
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
        random_pairs(rng, lengths, num_modules, size),
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
        node_queries=torch.arange(rows * nodes).view(rows, nodes),
        verify_result=verify_result,
        chunk_choice=torch.empty(0, dtype=torch.int64),
    )


def random_pairs(rng, lengths, num_modules, size):
    table = make_pair_table(rows=TABLE_ROWS, room=num_modules - 1, width=size, like=torch.empty(0))
    table.pairs.tokens.random_(1, 99)
    table.pairs.aux_hidden_states.normal_()
    for row, length in lengths.items():
        table.num[row] = rng.randint(0, min(length, num_modules - 1))
    return table


def check_windows(seed: int, device: str, *, size: int = 37) -> None:
    """One catch-up without chunks: all that modules read, and all pairs that are stored."""
    from outrider.ops.tree.mtp_window_triton import open_windows_triton

    rng = random.Random(seed)
    torch.manual_seed(seed)
    num_modules, steps = rng.randint(2, 6), rng.randint(0, 6)
    steps = min(steps, num_modules)
    plan, catch_up, outcome, table = random_round(
        rng, num_modules=num_modules, steps=steps, size=size
    )
    ours = moved((plan.decode, plan.chunk, catch_up.decode, catch_up.queries), device)
    plan_there, catch_up_there = _on(plan, ours[:2]), _on(catch_up, ours[2:])
    outcome_there, table_there = moved(outcome, device), moved(table, device)
    sizes = {"width": catch_up.shape.nodes, "num_modules": num_modules}
    right = open_windows_reference(
        table, outcome, plan.decode, plan.chunk, catch_up=catch_up.decode, **sizes
    )
    found = open_windows_triton(
        table_there,
        outcome_there,
        plan_there.decode,
        plan_there.chunk,
        catch_up=catch_up_there.decode,
        **sizes,
    )
    assert_same(found.windows, right.windows)
    for name in ("tokens", "depths", "ancestors"):
        assert_same(getattr(found.nodes, name), getattr(right.nodes, name), name)
    assert_same(found.is_idle, right.is_idle, "is_idle")
    assert_same(found.aux_hidden_states, right.aux_hidden_states, "aux hidden states")
    assert_same(catch_up_there.decode.rows, catch_up.decode.rows, "rows")
    assert_same(catch_up_there.decode.lengths, catch_up.decode.lengths, "lengths")
    _check_pairs(table_there, table, plan.decode.rows)
    _check_drafts(rng, found, right, catch_up_there, catch_up, num_modules, device)


def _check_pairs(found, right, rows) -> None:
    """The stored pairs that count are the same; row 0 has none."""
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


def _check_drafts(rng, found, right, catch_up_there, catch_up, num_modules, device) -> None:
    """Module by module: drafts are stored, and the next module runs them."""
    from outrider.ops.tree.mtp_window_triton import write_drafts_triton

    drafts = torch.zeros(TABLE_ROWS, num_modules, dtype=torch.int64)
    drafts_there = drafts.clone().to(device)
    for module in range(num_modules):
        tokens = torch.tensor([rng.randrange(99) for _ in range(right.windows.first.shape[0])])
        _write(write_drafts_reference, tokens, module, right, catch_up, drafts)
        _write(write_drafts_triton, tokens.to(device), module, found, catch_up_there, drafts_there)
        real = ~right.is_idle.flatten()
        queries = catch_up_there.queries.tokens
        assert_same(queries[real.to(device)], catch_up.queries.tokens[real], "queries")
        assert_same(drafts_there[1:], drafts[1:], "drafts")


def _write(write, tokens, module, inputs, catch_up, drafts) -> None:
    rows, queries = catch_up.decode.rows, catch_up.queries.tokens
    write(tokens, module, inputs, catch_up.chunk, rows=rows, drafts=drafts, queries=queries)


def _on(plan, parts):
    """A plan with some of its parts elsewhere."""
    names = {"DecodeRows": "decode", "ChunkRows": "chunk", "Queries": "queries"}
    return replace(plan, **{names[type(part).__name__]: part for part in parts})
