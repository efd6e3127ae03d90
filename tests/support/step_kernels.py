"""Random steps, run by the kernels on any device and by the torch law on the CPU: equal exactly."""

import random
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch

from outrider.kv.kv_pool import KVLayout, KVPool
from outrider.ops.tree import draft_states_triton as state_kernels
from outrider.ops.tree.commit_triton import commit_rows, compact
from outrider.ops.tree.grow_tree_triton import chain_nodes, select_nodes
from outrider.ops.tree.verify_triton import verify_tree
from outrider.sampling.draft_topk import Likely
from outrider.spec import grow_tree as law
from outrider.spec import model_drafter
from outrider.spec.commit import commit
from outrider.spec.draft_slots import DraftSlots
from outrider.spec.drafter import StepOutcome, chain
from outrider.spec.verify import verify
from outrider.step.draft_tree import DraftTree, VerifyResult
from outrider.step.fill_plan import _fill_on_gpu, _fill_queries, _fill_sampled, resolve_lengths
from outrider.step.plan import DecodeRows
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


def random_step(rng: random.Random, *, nodes: int, topk: int = 1) -> tuple[SmallDevice, Any]:
    """A plan over random rows, chunks and padding, with lengths resolved and nothing else."""
    page_size, pad = rng.choice([1, 3, 4, 16]), rng.choice([1, 2, 5])
    reach = 40 + nodes * topk  # of the longest row and the branches of a draft
    device = small_device(rng, page_size=page_size, nodes=nodes, pad=pad, rows=9, reach=reach)
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
    batch = batch_of(decodes, chunks, nodes=nodes, slack=1, topk=topk)
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


def check_fill(seed: int, device: str) -> None:
    rng = random.Random(seed)
    nodes, first_node = rng.choice([1, 2, 3, 7, 16]), rng.choice([0, 0, 1, 3])
    small, plan = random_step(rng, nodes=nodes)
    tree = some_tree(rng, plan.shape.rows, nodes)
    there = replace(plan, **{p: moved(getattr(plan, p), device) for p in ("decode", "chunk")})
    there = replace(there, queries=moved(plan.queries, device), sampled=moved(plan.sampled, device))
    for record in (there.queries, there.sampled):
        for field in fields(record):
            getattr(record, field.name).fill_(POISON)
    table = moved_table(small.table, device)
    _fill_on_gpu(there, moved(tree, device), table, small.page_size, first_node)
    _fill_queries(plan, tree, small.table, small.page_size, first_node)
    _fill_sampled(plan)
    assert_same(there.queries, plan.queries)
    assert_same(there.sampled, plan.sampled)


def random_verify_result(rng: random.Random, tree: DraftTree) -> tuple[torch.Tensor, VerifyResult]:
    """Choices that often agree, and what the law makes of them."""
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
    return choice, verify(tree, choice, most)


def check_verify(seed: int, device: str) -> None:
    rng = random.Random(seed)
    nodes = rng.choice([1, 2, 5, 16, 17, 33, 64])
    tree = some_tree(rng, rng.choice([1, 3, 8]), nodes)
    choice, right = random_verify_result(rng, tree)
    wide = torch.cat([choice, choice], 1).to(device)[:, :nodes]  # rows need not be dense
    columns = tuple(moved(getattr(tree, f.name), device) for f in fields(tree))
    path, num_accepted, emitted, drafted = verify_tree(columns, wide, right.path.shape[1])
    assert_same(
        VerifyResult(path=path, num_accepted=num_accepted, emitted=emitted, drafted=drafted), right
    )


def check_commit(seed: int, device: str) -> None:
    rng = random.Random(seed)
    nodes = rng.choice([1, 2, 5, 16])
    small, plan = random_step(rng, nodes=nodes, topk=3)
    _, verify_result = random_verify_result(rng, some_tree(rng, plan.shape.rows, nodes))
    chunk_choice = torch.randint(0, 99, plan.chunk.rows.shape)
    layout = KVLayout(layers=3, vectors=2, width=5, page_size=small.page_size, dtype=torch.half)
    kv = KVPool(layout, num_pages=small.num_pages, device=torch.device("cpu"))
    kv.storage.copy_(torch.randn(kv.storage.shape))
    storage, table = moved(kv.storage, device), moved_table(small.table, device)
    decode = moved((plan.decode.rows, plan.decode.lengths), device)
    path, num_accepted, emitted = moved(
        (verify_result.path, verify_result.num_accepted, verify_result.emitted), device
    )
    compact(storage, decode=decode, path=path, num_accepted=num_accepted, pages=table.pages)
    chunk = (plan.chunk.rows, plan.chunk.starts, plan.chunk.counts, chunk_choice)
    commit_rows(
        decode=decode,
        num_accepted=num_accepted,
        emitted=emitted,
        chunk=moved(chunk, device),
        table=(table.lengths, table.last_tokens),
    )
    commit(plan, verify_result, chunk_choice, table=small.table, kv=kv)
    # Page 0 is nobody's: the law copies padding there.
    assert torch.equal(storage.cpu()[:, 1:], kv.storage[:, 1:])
    assert torch.equal(table.lengths.cpu(), small.table.lengths)
    assert torch.equal(table.last_tokens.cpu(), small.table.last_tokens)


def check_chain(seed: int, device: str) -> None:
    rng = random.Random(seed)
    tokens = torch.zeros(rng.choice([1, 3, 40]), rng.choice([1, 2, 6, 63, 64]), dtype=torch.int64)
    right = chain(tokens)
    parents, depths, ancestors = chain_nodes(tokens.to(device))
    found = DraftTree(tokens=tokens, parents=parents, depths=depths, ancestors=ancestors)
    assert_same(found, right)


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


def random_likely(generator: torch.Generator, num: int, topk: int) -> Likely:
    """Coarse log-probabilities, so that many are equal; some are impossible."""
    coarse = -torch.randint(0, 6, (num, topk), generator=generator) / 4.0
    impossible = torch.rand(num, topk, generator=generator) < 0.1
    values = coarse.masked_fill(impossible, float("-inf")).sort(1, descending=True).values
    tokens = torch.randint(0, 2**17, (num, topk), generator=generator)
    return Likely(logprobs=values, tokens=tokens)


def node_0(root: torch.Tensor, lengths: torch.Tensor) -> law.Frontier:
    zeros = torch.zeros_like(root)[:, None]
    return law.Frontier(
        scores=zeros.float(),
        numbers=zeros - 1,
        places=zeros,
        positions=lengths[:, None] + 1,
        nodes=DraftTree(tokens=root[:, None], parents=zeros, depths=zeros, ancestors=zeros),
    )


def check_growth(seed: int, device: str) -> None:
    """Level by level on the same log-probabilities; then the trees."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    tree = random_budget(rng)
    decode, slots = random_decode_rows(rng, tree), DraftSlots(tree=tree)
    there, root = moved(decode, device), decode.rows + 500
    right, tips = law.room_for(tree, root), node_0(root, decode.lengths)
    found, found_tips = law.room_for(tree, root.to(device)), moved(tips, device)
    for depth in range(1, tree.steps + 1):
        likely = random_likely(generator, tips.scores.numel(), tree.topk)
        tips = law.grow(tips, likely, decode, candidates=right, slots=slots, depth=depth)
        level = law.level_of(found, depth, tree.topk)
        found_tips = law._grown_on_gpu(
            found_tips, moved(likely, device), there, level, slots, depth
        )
        assert_same(level, law.level_of(right, depth, tree.topk), f"level {depth}")
        if depth < tree.steps:
            assert_same(found_tips, tips, f"tips {depth}")
    columns = select_nodes(
        root.to(device),
        (found.scores, found.tokens, found.parents),
        there.budgets,
        nodes=tree.nodes,
        steps=tree.steps,
    )
    names = [field.name for field in fields(DraftTree)]
    assert_same(
        DraftTree(**dict(zip(names, columns, strict=True))),
        law.select(root, right, decode.budgets, tree),
    )


def check_states(seed: int, device: str) -> None:
    """What a drafter copies between rows, and where its catch-up starts."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    nodes, lead, width = rng.choice([1, 2, 5, 16]), rng.choice([0, 1]), rng.choice([1, 24, 2100])
    small, plan = random_step(rng, nodes=nodes)
    tree = some_tree(rng, plan.shape.rows, nodes)
    _, verify_result = random_verify_result(rng, tree)
    # A plan's trees are as deep as its nodes, so that all are emitted at most.
    pad = verify_result.path[:, -1:].expand(-1, nodes - verify_result.path.shape[1])
    verify_result = replace(verify_result, path=torch.cat([verify_result.path, pad], 1))
    outcome = StepOutcome(
        aux_hidden_states=torch.randn(plan.shape.num_query, width, generator=generator),
        verify_result=verify_result,
        chunk_choice=torch.randint(0, 99, plan.chunk.rows.shape, generator=generator),
    )
    check_follow(plan, outcome, lead, device)
    check_keep(small, plan, outcome, generator, device)
    check_inherit(rng, generator, device)


def check_follow(plan: Any, outcome: StepOutcome, lead: int, device: str) -> None:
    own = replace(plan.decode, lengths=torch.full_like(plan.decode.lengths, POISON))
    chunk = replace(plan.chunk, tokens=torch.full_like(plan.chunk.tokens, POISON))
    catch_up = replace(plan, decode=own, chunk=chunk)
    new_lengths, new_tokens = moved((own.lengths, chunk.tokens), device)
    right = model_drafter.follow(plan, outcome, catch_up, lead)
    inputs = plan.chunk.counts, plan.chunk.owners, plan.chunk.followers, plan.chunk.tokens
    found = state_kernels.follow(
        outcome.aux_hidden_states.to(device),
        outcome.verify_result.path.to(device),
        plan.decode.lengths.to(device),
        chunk=moved((*inputs, outcome.chunk_choice), device),
        new_lengths=new_lengths,
        new_tokens=new_tokens,
        lead=lead,
    )
    assert_same(found, right)
    assert_same(new_lengths, own.lengths)
    assert_same(new_tokens, chunk.tokens)


def check_keep(
    small: SmallDevice, plan: Any, outcome: StepOutcome, generator: torch.Generator, device: str
) -> None:
    width = outcome.aux_hidden_states.shape[1]
    states = torch.randn(small.table.lengths.shape[0], width, generator=generator)
    after = torch.randn(plan.shape.num_query, width, generator=generator)
    ends = plan.shape.num_decode_query + (plan.chunk.counts.cumsum(0) - 1).clamp_min(0)
    found = moved(states, device)
    state_kernels.keep(
        after.to(device),
        found,
        num_accepted=outcome.verify_result.num_accepted.to(device),
        decode_rows=plan.decode.rows.to(device),
        most_emitted=plan.shape.nodes,
        chunk_ends=ends.to(device),
        chunk_rows=plan.chunk.rows.to(device),
    )
    model_drafter.keep(after, states, plan, outcome, ends)
    assert_same(found[1:], states[1:])


def check_inherit(rng: random.Random, generator: torch.Generator, device: str) -> None:
    rows, branches, topk, width = rng.choice([1, 3]), rng.choice([1, 4]), 4, rng.choice([3, 2100])
    states = torch.randn(rows, branches, width, generator=generator)
    places = torch.randint(0, branches, (rows, topk), generator=generator)
    found = state_kernels.inherit(states.to(device), places.to(device))
    assert_same(found, model_drafter.inherit(states, places))


def check_plant(seed: int, device: str) -> None:
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    rows, width, lead = rng.choice([1, 5]), rng.choice([3, 2100]), rng.choice([0, 1])
    states = torch.randn(8, width, generator=generator)
    last_tokens = torch.randint(0, 99, (8,), generator=generator)
    index = torch.randint(0, 8, (rows,), generator=generator)
    lengths = torch.randint(0, 99, (rows,), generator=generator)
    level_lengths = torch.full((rows,), POISON, device=device)
    found = state_kernels.plant(
        rows=index.to(device),
        lengths=lengths.to(device),
        last_tokens=last_tokens.to(device),
        states=states.to(device),
        level_lengths=level_lengths,
        lead=lead,
    )
    zeros = torch.zeros(rows, 1, dtype=torch.int64)
    right = zeros.float(), zeros - 1, zeros, lengths[:, None] + 1, last_tokens[index][:, None]
    for one, other in zip(found, (*right, states[index][:, None]), strict=True):
        assert_same(one, other)
    assert_same(level_lengths, lengths + lead)
