"""Random steps, run by the kernels on any device and by the torch reference on the CPU."""

import random
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch

from outrider.kv.kv_pool import KVLayout, KVPool
from outrider.ops.sampling.top_tokens import TopTokens
from outrider.ops.tree import draft_hidden_states as reference
from outrider.ops.tree import draft_hidden_states_triton as kernels
from outrider.ops.tree.acceptance_table import (
    KINDS,
    NUM_ENTRIES,
    AcceptanceTable,
    calibrate_reference_,
    count_accepted_reference_,
)
from outrider.ops.tree.acceptance_table_triton import calibrate_triton_, count_accepted_triton_
from outrider.ops.tree.candidates import Candidates, Frontier
from outrider.ops.tree.chain import chain_reference
from outrider.ops.tree.chain_triton import chain_triton
from outrider.ops.tree.commit_rows import commit_rows_reference
from outrider.ops.tree.commit_rows_triton import commit_rows_triton
from outrider.ops.tree.compact_kv import compact_kv_reference
from outrider.ops.tree.compact_kv_triton import compact_kv_triton
from outrider.ops.tree.draft_tree import DraftTree, StepOutcome, VerifyResult
from outrider.ops.tree.fill_queries import fill_queries_reference
from outrider.ops.tree.fill_queries_triton import fill_queries_triton
from outrider.ops.tree.grow_level import grow_level_reference
from outrider.ops.tree.grow_level_triton import grow_level_triton
from outrider.ops.tree.place_nodes import place_nodes_reference
from outrider.ops.tree.place_nodes_triton import place_nodes_triton
from outrider.ops.tree.plan_rows import DecodeRows
from outrider.ops.tree.select_nodes import select_nodes_reference
from outrider.ops.tree.select_nodes_triton import select_nodes_triton
from outrider.ops.tree.share_nodes import share_nodes_reference
from outrider.ops.tree.share_nodes_triton import share_nodes_triton
from outrider.ops.tree.verify import verify_reference
from outrider.ops.tree.verify_triton import verify_triton
from outrider.spec.draft_slots import DraftSlots
from outrider.spec.grow_tree import grow, level_of, room_for, tree_level
from outrider.step.fill_plan import resolve_lengths
from outrider.step.row_table import RowTable
from outrider.wire.draft_budget import Budget
from support.steps import NO_FLAGS, SmallDevice, batch_of, small_device
from support.trees import random_tree

POISON = -(2**30)


def moved(value: Any, device: str) -> Any:
    """A copy of a record, or of a tensor, with memory of its own."""
    if isinstance(value, torch.Tensor):
        return value.clone().to(device)
    if isinstance(value, tuple):
        return tuple(moved(each, device) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{f.name: moved(getattr(value, f.name), device) for f in fields(value)}
        )
    return value


def assert_same(found: Any, right: Any, what: str = "") -> None:
    if isinstance(right, torch.Tensor):
        assert torch.equal(found.cpu(), right), what
        return
    for field in fields(right):
        assert_same(getattr(found, field.name), getattr(right, field.name), field.name)


def random_step(
    rng: random.Random, *, nodes: int, topk: int = 1, is_ragged: bool = False
) -> tuple[SmallDevice, Any]:
    """A plan over random rows, chunks and padding, with lengths resolved and nothing else."""
    page_size, pad = rng.choice([1, 3, 4, 16]), rng.choice([1, 2, 5])
    reach = 40 + nodes * topk  # of the longest row and the branches of a draft
    sizes = {"page_size": page_size, "nodes": nodes, "pad": pad, "rows": 9, "reach": reach}
    device = small_device(rng, **sizes, is_ragged=is_ragged)
    rows = rng.sample(range(1, 10), rng.randint(1, 9))
    decodes = {row: rng.randint(0, 36) for row in rows[: rng.randint(0, len(rows))]}
    chunks = {
        row: (rng.randint(0, 20), [rng.randrange(1, 50) for _ in range(rng.randint(1, 9))])
        for row in rows[len(decodes) :][:4]
    }
    if not decodes and not chunks:
        decodes = {rows[0]: 3}
    for row, length in decodes.items():
        device.table.lengths[row] = length
    own = [rng.randint(1, nodes) for _ in decodes] if is_ragged else None
    batch = batch_of(decodes, chunks, nodes=nodes, slack=1, topk=topk, own_nodes=own)
    plan = device.planner.plan(batch, sampling_flags=NO_FLAGS)
    resolve_lengths(plan, device.table)
    followers = [rng.choice([-1, rng.randrange(50)]) for _ in range(plan.shape.chunk.rows)]
    plan.chunk.followers.copy_(torch.tensor(followers, dtype=torch.int64))
    return device, plan


def some_tree(rng: random.Random, rows: int, nodes: int, vocab: int = 70) -> DraftTree:
    """A random tree, some of whose last nodes are absent."""
    if not rows:
        return DraftTree(**{f.name: torch.empty(0, nodes).long() for f in fields(DraftTree)})
    tree = random_tree(rng, rows=rows, nodes=nodes, vocab=vocab)
    present = torch.tensor([[rng.randint(1, nodes)] for _ in range(rows)])
    is_present = torch.arange(nodes) < present
    return replace(tree, tokens=torch.where(is_present, tree.tokens, -1))


def moved_table(table: RowTable, device: str) -> RowTable:
    max_rows, max_pages = table.pages.shape[0] - 1, table.pages.shape[1]
    new = RowTable(max_rows=max_rows, max_pages=max_pages, device=torch.device(device))
    for name in ("lengths", "last_tokens", "pages"):
        getattr(new, name).copy_(getattr(table, name))
    return new


def check_place(seed: int, device: str) -> None:
    """Trees with as many nodes as there are query tokens, with fewer, and with too many."""
    rng = random.Random(seed)
    rows, nodes = rng.choice([1, 2, 9, 70]), rng.choice([2, 3, 16, 40])
    tree = some_tree(rng, rows, nodes)
    num_query = rng.choice([rows, rng.randint(rows, rows * nodes - 1), rows * nodes - 1])
    there, queries = moved(tree, device), torch.full((rows, nodes), POISON)
    found = queries.to(device, copy=True)
    seen = place_nodes_triton(there, found, num_query=num_query)
    assert_same(seen, place_nodes_reference(tree, queries, num_query=num_query))
    assert_same(found, queries)
    assert_same(there, tree)
    used = queries[queries >= 0]
    assert sorted(used.tolist()) == list(range(num_query))  # every query token once


def check_fill(
    seed: int, device: str, *, is_ragged: bool = False, fill: Any = fill_queries_triton
) -> None:
    rng = random.Random(seed)
    nodes, first_node = rng.choice([1, 2, 3, 7, 16]), rng.choice([0, 0, 1, 3])
    small, plan = random_step(rng, nodes=nodes, is_ragged=is_ragged)
    tree = some_tree(rng, plan.shape.rows, plan.shape.nodes)
    there = replace(plan, **{p: moved(getattr(plan, p), device) for p in ("decode", "chunk")})
    there = replace(there, queries=moved(plan.queries, device), sampled=moved(plan.sampled, device))
    for record in (there.queries, there.sampled):
        for field in fields(record):
            getattr(record, field.name).fill_(POISON)
    if plan.shape.ragged:
        place_nodes_reference(tree, plan.queries.of_nodes, num_query=plan.shape.ragged)
        there.queries.of_nodes.copy_(plan.queries.of_nodes)
    table = moved_table(small.table, device)
    size = {"page_size": small.page_size, "first_node": first_node}
    fill(
        moved(tree, device),
        there.decode,
        there.chunk,
        pages=table.pages,
        queries=there.queries,
        sampled=there.sampled,
        **size,
    )
    fill_queries_reference(
        tree,
        plan.decode,
        plan.chunk,
        pages=small.table.pages,
        queries=plan.queries,
        sampled=plan.sampled,
        **size,
    )
    assert_same(there.queries, plan.queries)
    assert_same(there.sampled, plan.sampled)


def check_ragged(seed: int, device: str) -> None:
    check_fill(seed, device, is_ragged=True)
    check_states(seed, device, is_ragged=True)


def random_verify_result(rng: random.Random, tree: DraftTree) -> tuple[torch.Tensor, VerifyResult]:
    """Choices that often agree, and their verification by the reference."""
    choice = torch.tensor([rng.randrange(70) for _ in range(tree.tokens.numel())])
    choice = choice.long().view_as(tree.tokens)
    for row, (tokens, parents) in enumerate(
        zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)
    ):
        for node in range(1, len(tokens)):
            if tokens[node] >= 0 and rng.random() < 0.6:
                choice[row, parents[node]] = tokens[node]
    deepest = int(tree.depths.max()) if tree.depths.numel() else 0
    most = rng.randint(deepest + 1, max(tree.tokens.shape[1], deepest + 1))
    return choice, verify_reference(tree, choice, most)


def check_verify(seed: int, device: str, *, verify: Any = verify_triton) -> None:
    rng = random.Random(seed)
    nodes = rng.choice([1, 2, 5, 16, 17, 33, 64])
    tree = some_tree(rng, rng.choice([1, 3, 8]), nodes)
    choice, right = random_verify_result(rng, tree)
    wide = torch.cat([choice, choice], 1).to(device)[:, :nodes]  # rows need not be dense
    assert_same(verify(moved(tree, device), wide, right.path.shape[1]), right)


def check_commit(
    seed: int, device: str, *, compact: Any = compact_kv_triton, commit: Any = commit_rows_triton
) -> None:
    rng = random.Random(seed)
    nodes = rng.choice([1, 2, 5, 16])
    small, plan = random_step(rng, nodes=nodes, topk=3)
    _, verify_result = random_verify_result(rng, some_tree(rng, plan.shape.rows, nodes))
    chunk_choice = torch.randint(0, 99, plan.chunk.rows.shape)
    layout = KVLayout(layers=3, vectors=2, width=6, page_size=small.page_size, dtype=torch.half)
    kv = KVPool(layout, num_pages=small.num_pages, device=torch.device("cpu"))
    kv.storage.copy_(torch.randn(kv.storage.shape))
    storage, table = moved(kv.storage, device), moved_table(small.table, device)
    decode, result = moved(plan.decode, device), moved(verify_result, device)
    compact(storage, decode, result, table.pages)
    commit(
        decode,
        result,
        moved(plan.chunk, device),
        chunk_choice.to(device),
        lengths=table.lengths,
        last_tokens=table.last_tokens,
    )
    compact_kv_reference(kv.storage, plan.decode, verify_result, small.table.pages)
    commit_rows_reference(
        plan.decode,
        verify_result,
        plan.chunk,
        chunk_choice,
        lengths=small.table.lengths,
        last_tokens=small.table.last_tokens,
    )
    # Page 0 belongs to no request: the reference copies padding there.
    assert torch.equal(storage.cpu()[:, 1:], kv.storage[:, 1:])
    assert torch.equal(table.lengths.cpu(), small.table.lengths)
    assert torch.equal(table.last_tokens.cpu(), small.table.last_tokens)


def check_chain(seed: int, device: str) -> None:
    rng = random.Random(seed)
    tokens = torch.zeros(rng.choice([1, 3, 40]), rng.choice([1, 2, 6, 63, 64]), dtype=torch.int64)
    assert_same(chain_triton(tokens.to(device)), chain_reference(tokens))


def random_budget(rng: random.Random) -> Budget:
    """Any size a user may ask for, small ones more often."""
    topk = rng.choice([1, 1, 2, 3, 4, 5, 8, 16])
    steps = rng.randint(1, min(1 + 64 // topk, rng.choice([3, 8, 16])))
    return Budget(steps=steps, topk=topk, nodes=rng.choice([2, 6, 16, 17, 40, 64]))


def random_decode_rows(rng: random.Random, tree: Budget) -> DecodeRows:
    """Rows with budgets of their own, up to the tree's; the last is padding."""
    rows = rng.choice([1, 2, 7])
    own = [[rng.randint(0, size) for _ in range(rows - 1)] + [0] for size in vars_of(tree)]
    lengths = torch.tensor([rng.randrange(99) for _ in range(rows)])
    return DecodeRows(rows=torch.arange(rows), lengths=lengths, budgets=torch.tensor(own))


def vars_of(tree: Budget) -> tuple[int, int, int]:
    return tree.steps, tree.topk, tree.nodes


def random_likely(generator: torch.Generator, num: int, topk: int) -> TopTokens:
    """Coarse log-probabilities, so that many are equal; some are impossible."""
    coarse = -torch.randint(0, 6, (num, topk), generator=generator) / 4.0
    impossible = torch.rand(num, topk, generator=generator) < 0.1
    values = coarse.masked_fill(impossible, float("-inf")).sort(1, descending=True).values
    tokens = torch.randint(0, 2**17, (num, topk), generator=generator)
    return TopTokens(logprobs=values, tokens=tokens)


def node_0(root: torch.Tensor, lengths: torch.Tensor) -> Frontier:
    zeros = torch.zeros_like(root)[:, None]
    return Frontier(
        scores=zeros.float(),
        numbers=zeros - 1,
        parent_tips=zeros,
        positions=lengths[:, None] + 1,
        nodes=DraftTree(tokens=root[:, None], parents=zeros, depths=zeros, ancestors=zeros),
    )


def check_growth(
    seed: int,
    device: str,
    *,
    grow: Any = grow_level_triton,
    select: Any = select_nodes_triton,
) -> None:
    """Level by level on the same log-probabilities; then the trees."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    tree = random_budget(rng)
    decode, slots = random_decode_rows(rng, tree), DraftSlots(tree=tree)
    there, root = moved(decode, device), decode.rows + 500
    right, tips = room_for(tree, root), node_0(root, decode.lengths)
    found, found_tips = room_for(tree, root.to(device)), moved(tips, device)
    for depth in range(1, tree.steps + 1):
        likely = random_likely(generator, tips.scores.numel(), tree.topk)
        level = tree_level(slots, depth)
        expected = level_of(right, depth, tree.topk)
        tips = grow_level_reference(tips, likely, decode, candidates=expected, level=level)
        own = level_of(found, depth, tree.topk)
        found_tips = grow(
            found_tips,
            moved(likely, device),
            there,
            candidates=own,
            level=level,
        )
        assert_same(own, expected, f"level {depth}")
        if depth < tree.steps:
            assert_same(found_tips, tips, f"tips {depth}")
    assert_same(
        select(root.to(device), found, there.budgets, tree),
        select_nodes_reference(root, right, decode.budgets, tree),
    )


def check_share(seed: int, device: str) -> None:
    """Coarse scores, so that many are equal; some candidates are ruled out."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    rows, width = rng.choice([1, 3, 17, 33]), rng.choice([1, 2, 7, 18])
    scores = -torch.randint(0, 9, (rows, width), generator=generator) / 4.0
    scores = scores.masked_fill(torch.rand(rows, width, generator=generator) < 0.2, -torch.inf)
    most = rng.randint(1, width)
    nodes = torch.randint(0, most + 2, (1, rows), generator=generator)
    budgets = torch.cat([torch.randint(0, 9, (2, rows), generator=generator), nodes])
    candidates = Candidates(scores=scores, tokens=scores.long(), parents=scores.long())
    for num_drafts in {0, 1, rng.randint(0, rows * most), rows * most}:
        right = share_nodes_reference(candidates, budgets, most=most, num_drafts=num_drafts)
        found = share_nodes_triton(
            moved(candidates, device), budgets.to(device), most=most, num_drafts=num_drafts
        )
        assert_same(found, right)
        assert int(right[2].sum()) - rows <= num_drafts
        assert (right[2] <= budgets[2].clamp_min(1)).all()


def check_calibration(
    seed: int,
    device: str,
    *,
    calibrate: Any = calibrate_triton_,
    count: Any = count_accepted_triton_,
) -> None:
    """Grown trees are scored by a random table, selected, verified, and counted."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    tree = random_budget(rng)
    decode, slots = random_decode_rows(rng, tree), DraftSlots(tree=tree)
    root, tips = decode.rows + 500, node_0(decode.rows + 500, decode.lengths)
    candidates = room_for(tree, root)
    for depth in range(1, tree.steps + 1):
        likely = random_likely(generator, tips.scores.numel(), tree.topk)
        tips = grow(tips, likely, decode, candidates=candidates, slots=slots, depth=depth)
    kinds = torch.randint(0, KINDS, candidates.parents.shape, generator=generator)
    if rng.random() < 0.5:  # one kind per row
        kinds = kinds[:, :1].expand_as(kinds)
    tried = 50 * torch.rand(NUM_ENTRIES, generator=generator)
    accepted = tried * torch.rand(NUM_ENTRIES, generator=generator)
    table = AcceptanceTable(tried=tried, accepted=accepted)
    there, found = moved(candidates, device), moved(table, device)
    entries = calibrate(there, kinds.to(device), found, steps=tree.steps)
    assert_same(entries, calibrate_reference_(candidates, kinds, table, steps=tree.steps))
    torch.testing.assert_close(there.scores.cpu(), candidates.scores, atol=1e-4, rtol=1e-4)
    selected = select_nodes_reference(root, candidates, decode.budgets, tree)
    _, result = random_verify_result(rng, selected.tree)
    path = result.path.contiguous()
    count(found, entries, moved(selected, device), path.to(device))
    count_accepted_reference_(table, entries.cpu(), selected, path)
    torch.testing.assert_close(found.tried.cpu(), table.tried)
    torch.testing.assert_close(found.accepted.cpu(), table.accepted)


def check_states(seed: int, device: str, *, is_ragged: bool = False) -> None:
    """The hidden states that a drafter copies between rows, and where its catch-up starts."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    nodes, lead, width = rng.choice([1, 2, 5, 16]), rng.choice([0, 1]), rng.choice([1, 24, 2100])
    lookahead = 0 if lead else seed % 2
    small, plan = random_step(rng, nodes=nodes, is_ragged=is_ragged)
    nodes = plan.shape.nodes
    tree = some_tree(rng, plan.shape.rows, nodes)
    queries = torch.arange(plan.shape.num_nodes).view(-1, nodes)
    if plan.shape.ragged:
        place_nodes_reference(tree, queries, num_query=plan.shape.ragged)
    _, verify_result = random_verify_result(rng, tree)
    # A plan's trees are as deep as its nodes, so that all are emitted at most.
    pad = verify_result.path[:, -1:].expand(-1, nodes - verify_result.path.shape[1])
    verify_result = replace(verify_result, path=torch.cat([verify_result.path, pad], 1))
    outcome = StepOutcome(
        aux_hidden_states=torch.randn(plan.shape.num_query, width, generator=generator),
        node_queries=queries,
        verify_result=verify_result,
        chunk_choice=torch.randint(0, 99, plan.chunk.rows.shape, generator=generator),
    )
    check_gather(plan, outcome, device, lead=lead, lookahead=lookahead)
    check_store(small, plan, outcome, generator, device)
    check_parents(rng, generator, device)


def check_gather(
    plan: Any, outcome: StepOutcome, device: str, *, lead: int, lookahead: int
) -> None:
    new_lengths = torch.full_like(plan.decode.lengths, POISON)
    new_tokens = torch.full_like(plan.chunk.tokens, POISON)
    found_lengths, found_tokens = moved((new_lengths, new_tokens), device)
    right = reference.gather_accepted_reference(
        outcome,
        plan.decode,
        plan.chunk,
        new_lengths=new_lengths,
        new_tokens=new_tokens,
        lead=lead,
        lookahead=lookahead,
    )
    found = kernels.gather_accepted_triton(
        moved(outcome, device),
        moved(plan.decode, device),
        moved(plan.chunk, device),
        new_lengths=found_lengths,
        new_tokens=found_tokens,
        lead=lead,
        lookahead=lookahead,
    )
    assert_same(found, right)
    assert_same(found_lengths, new_lengths)
    assert_same(found_tokens, new_tokens)


def check_store(
    small: SmallDevice, plan: Any, outcome: StepOutcome, generator: torch.Generator, device: str
) -> None:
    width = outcome.aux_hidden_states.shape[1]
    states = torch.randn(small.table.lengths.shape[0], width, generator=generator)
    num_nodes, num_tokens = plan.shape.num_nodes, plan.shape.chunk.tokens  # never ragged
    after = torch.randn(num_nodes + num_tokens, width, generator=generator)
    ends = num_nodes + (plan.chunk.counts.cumsum(0) - 1).clamp_min(0)
    rows = {
        "num_accepted": outcome.verify_result.num_accepted,
        "decode_rows": plan.decode.rows,
        "chunk_ends": ends,
        "chunk_rows": plan.chunk.rows,
    }
    there = {name: tensor.to(device) for name, tensor in rows.items()}
    found, most = moved(states, device), plan.shape.nodes
    kernels.store_hidden_states_triton(after.to(device), found, most_emitted=most, **there)
    reference.store_hidden_states_reference(after, states, most_emitted=most, **rows)
    assert_same(found[1:], states[1:])


def check_parents(rng: random.Random, generator: torch.Generator, device: str) -> None:
    rows, branches, topk, width = rng.choice([1, 3]), rng.choice([1, 4]), 4, rng.choice([3, 2100])
    states = torch.randn(rows, branches, width, generator=generator)
    tips = torch.randint(0, branches, (rows, topk), generator=generator)
    found = kernels.parent_hidden_states_triton(states.to(device), tips.to(device))
    assert_same(found, reference.parent_hidden_states_reference(states, tips))


def check_start(seed: int, device: str) -> None:
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    rows, width, lead = rng.choice([1, 5]), rng.choice([3, 2100]), rng.choice([0, 1])
    states = torch.randn(8, width, generator=generator)
    last_tokens = torch.randint(0, 99, (8,), generator=generator)
    decode = DecodeRows(
        rows=torch.randint(0, 8, (rows,), generator=generator),
        lengths=torch.randint(0, 99, (rows,), generator=generator),
        budgets=torch.zeros(3, rows, dtype=torch.int64),
    )
    level_lengths = torch.full((rows,), POISON)
    found_lengths = level_lengths.clone().to(device)
    first_lengths = level_lengths.clone()
    found_first = first_lengths.clone().to(device)
    found_tips, found = kernels.start_round_triton(
        moved(decode, device),
        last_tokens=last_tokens.to(device),
        hidden_states=states.to(device),
        first_lengths=found_first,
        level_lengths=found_lengths,
        lead=lead,
    )
    tips, right = reference.start_round_reference(
        decode,
        last_tokens=last_tokens,
        hidden_states=states,
        first_lengths=first_lengths,
        level_lengths=level_lengths,
        lead=lead,
    )
    assert_same(found_tips, tips)
    assert_same(found, right)
    assert_same(found_lengths, decode.lengths + lead)
    assert_same(found_first, (decode.lengths + lead - 1).clamp_min(0))
