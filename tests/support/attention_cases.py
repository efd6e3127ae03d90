"""Steps for attention backends: texts on scattered pages, trees and chunks over them."""

import random
from dataclasses import dataclass, replace

import torch

from outrider.kv.reference_attention import ReferenceAttention
from outrider.ops.attention.attention_rule import NO_CAP, WHOLE_TEXT, AttentionRule
from outrider.ops.tree.plan_rows import ChunkRows, DecodeRows
from outrider.step.arena import Arena
from outrider.step.attention_backend import AttentionBackend, AttentionScope
from outrider.step.shape import ChunkShape, SamplingFlags, StepShape
from outrider.wire.draft_budget import Budget
from support.trees import random_tree


@dataclass(frozen=True, kw_only=True)
class Model:
    """The sizes of a layer."""

    kv_heads: int = 2
    group: int = 3
    head_dim: int = 64  # of a latent and the rotated key beside it
    latent: int = 0  # channels of a latent, which all heads share; 0: there are keys and values
    page_size: int = 3
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    window: int = WHOLE_TEXT
    attention_chunk: int = WHOLE_TEXT
    soft_cap: float = NO_CAP
    has_sinks: bool = False

    @property
    def rule(self) -> AttentionRule:
        return AttentionRule(
            scale=SCALE,
            window=self.window,
            attention_chunk=self.attention_chunk,
            soft_cap=self.soft_cap,
            sinks=self.sinks,
        )

    @property
    def sinks(self) -> torch.Tensor | None:  # [heads] below and above most scores
        if not self.has_sinks:
            return None
        return torch.linspace(-2.0, 5.0, self.heads, device=self.device)

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group

    @property
    def vectors(self) -> int:
        return 1 if self.latent else 2 * self.kv_heads

    def pages_of(self, keys: int) -> int:
        return -(-keys // self.page_size)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One step: queries over a layer whose KV is written."""

    model: Model
    shape: StepShape
    scope: AttentionScope
    query: torch.Tensor  # [num_query, heads, head_dim], a slice of wider tokens
    layer: torch.Tensor  # [pages, page_size, vectors, head_dim]


SCALE = 0.3
NO_CHUNKS: dict[int, tuple[int, int]] = {}


def latent_model(
    *, heads: int, latent: int = 32, rope: int = 16, page_size: int = 3, dtype=torch.float32,
    device: str = "cpu",
) -> Model:  # fmt: skip
    return Model(
        kv_heads=1,
        group=heads,
        head_dim=latent + rope,
        latent=latent,
        page_size=page_size,
        dtype=dtype,
        device=device,
    )


def make_case(
    model: Model,
    *,
    lengths: list[int],  # of the decode rows; row i + 1 of the page table
    nodes: int = 1,
    chunks: dict[int, tuple[int, int]] = NO_CHUNKS,  # page table row: start, count
    reach: int = 0,  # scratch positions past a length, if more than the nodes
    ancestors: torch.Tensor | None = None,  # [rows, nodes]; a random tree if there is none
    seed: int = 1,
) -> Case:
    """Rows own pages in random order; row 0 owns none and has page 0 everywhere."""
    rng, device = random.Random(seed), model.device
    generator = torch.Generator().manual_seed(seed)
    keys = max([n + max(nodes, reach) for n in lengths] + [s + c for s, c in chunks.values()])
    num_rows, num_pages = 1 + max(len(lengths), *chunks, 0), model.pages_of(keys) + 1
    pages = list(range(1, (num_rows - 1) * num_pages + 1))
    rng.shuffle(pages)
    table = torch.zeros(num_rows, num_pages, dtype=torch.int64)
    table[1:] = torch.tensor(pages).view(num_rows - 1, num_pages)
    if ancestors is None:
        tree = random_tree(rng, rows=max(len(lengths), 1), nodes=nodes, vocab=1000)
        ancestors = tree.ancestors[: len(lengths)]
    counts = [count for _, count in chunks.values()]
    shape = StepShape(
        rows=len(lengths),
        tree=Budget(steps=nodes, topk=max(nodes, 1), nodes=nodes),
        chunk=ChunkShape(rows=len(chunks), tokens=sum(counts), width=max([0, *counts])),
        pages=num_pages,
        sampling_flags=SamplingFlags(),
    )
    layer_shape = (len(pages) + 1, model.page_size, model.vectors, model.head_dim)
    wide = torch.randn(shape.num_query, model.heads + 2, model.head_dim, generator=generator)
    layer = torch.randn(layer_shape, generator=generator)
    scope = AttentionScope(
        decode=_decode(lengths, device),
        ancestors=ancestors.to(device),
        queries=torch.arange(shape.num_nodes, device=device).view(-1, nodes),
        chunk=_chunk(chunks, device),
        page_table=table.to(device),
        window_table=table[:, :0].to(device),
    )
    return Case(
        model=model,
        shape=shape,
        scope=scope,
        query=wide.to(device, model.dtype)[:, : model.heads],
        layer=layer.to(device, model.dtype),
    )


def ragged(case: Case, *, absent: list[int], padding: int = 0) -> Case:
    """The same step without the last nodes of each row; query tokens of the others follow each
    other, then those of padding.
    """
    from outrider.ops.tree.draft_tree import DraftTree
    from outrider.ops.tree.place_nodes import node_of_query, place_nodes_reference

    shape, ancestors = case.shape, case.scope.ancestors.cpu().clone()
    gone = torch.arange(shape.nodes) >= shape.nodes - torch.tensor(absent)[:, None]
    num_query, queries = shape.num_nodes - sum(absent) + padding, torch.empty_like(ancestors)
    tree = DraftTree(
        tokens=torch.where(gone, -1, 7), parents=ancestors, depths=ancestors, ancestors=ancestors
    )
    seen = place_nodes_reference(tree, queries, num_query=num_query)
    node = node_of_query(queries, num_query).to(case.query.device)
    chunks, there = case.query[shape.num_decode_query :], case.scope.ancestors.device
    return replace(
        case,
        shape=replace(shape, ragged=num_query),
        scope=replace(case.scope, ancestors=seen.to(there), queries=queries.to(there)),
        query=torch.cat([case.query[node], chunks]),
    )


def run(backend: AttentionBackend, case: Case, *, largest: StepShape | None = None) -> torch.Tensor:
    """A whole step, from reserve to run, on an arena that holds garbage before it is filled."""
    arena = Arena(torch.device(case.model.device))
    backend.reserve(arena, largest or case.shape)
    plan = backend.bind(arena, case.shape)
    arena.poison()
    backend.fill(plan, case.scope)
    if case.model.latent:
        return backend.run_latent(case.query, case.layer, plan, SCALE, case.model.latent)
    return backend.run(case.query, case.layer, plan, case.model.rule)


def trace(case: Case) -> dict[str, torch.Tensor]:
    """The record that `trace_paths` fills, over garbage."""
    from outrider.ops.attention.tree_paths_triton import trace_paths

    shape, scope = case.shape, case.scope
    sizes = {
        "out_pages": (shape.rows, shape.pages),
        "out_lengths": (shape.rows,),
        "out_queries": (shape.num_nodes if shape.ragged else 0,),
        "limits": (shape.num_nodes,),
        "tails": (shape.num_nodes, 64),
    }
    views = {name: torch.full(size, -7, dtype=torch.int32) for name, size in sizes.items()}
    decode = scope.decode
    queries = scope.queries if shape.ragged else scope.queries[:0]
    trace_paths(
        decode.rows, decode.lengths, scope.ancestors, scope.page_table, queries=queries, **views
    )
    return views


def place(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Pages and bounds as `place_chunks` writes them, over garbage."""
    from outrider.ops.attention.prefill_triton import place_chunks

    shape, chunk = case.shape.chunk, case.scope.chunk
    pages = torch.full((shape.rows, case.shape.pages), -7, dtype=torch.int32)
    bounds = torch.full((3, shape.rows), -7, dtype=torch.int32)
    place_chunks(
        chunk.rows,
        chunk.starts,
        chunk.counts,
        case.scope.page_table,
        out_pages=pages,
        bounds=bounds,
    )
    return pages, bounds


def assert_like_reference(backend: AttentionBackend, case: Case) -> None:
    """Close to the reference on the same numbers in fp32, within the precision of the dtype."""
    exact = replace(case, query=case.query.float(), layer=case.layer.float())
    reference = ReferenceAttention(page_size=case.model.page_size, dtype=torch.float32)
    right = run(reference, exact)
    out = run(backend, case)
    assert out.is_contiguous()
    assert out.dtype == case.model.dtype
    atol = {torch.float32: 5e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[case.model.dtype]
    torch.testing.assert_close(out.float(), right, atol=atol, rtol=0)


def decode_of_node(case: Case, row: int, node: int) -> Case:
    """The same text as plain decoding sees it: the path's KV moved to its own positions."""
    model, scope = case.model, case.scope
    mask, length = int(scope.ancestors[row, node]), int(scope.decode.lengths[row])
    path = [n for n in range(64) if mask >> n & 1]
    text = [*range(length), *(length + n for n in path)]
    flat = case.layer.view(-1, *case.layer.shape[2:])
    pages = scope.page_table[scope.decode.rows[row]].tolist()
    size = model.page_size
    slots = torch.tensor([pages[p // size] * size + p % size for p in text], device=flat.device)
    one = make_case(model, lengths=[length + len(path) - 1], seed=5)
    own = one.scope.page_table[1].tolist()
    places = [own[p // size] * size + p % size for p in range(len(text))]
    one.layer.flatten(0, 1)[places] = flat[slots]
    query = case.query[row * case.shape.nodes + node][None]
    return replace(one, query=query)


def assert_nodes_equal_decodes(backend: AttentionBackend, case: Case) -> None:
    """Every node has the bits of a plain decode of its path."""
    out = run(backend, case)
    for row in range(case.shape.rows):
        for node in range(case.shape.nodes):
            alone = run(backend, decode_of_node(case, row, node))
            assert torch.equal(out[row * case.shape.nodes + node], alone[0]), (row, node)


def assert_ragged_like_whole(
    backend: AttentionBackend, case: Case, *, absent: list[int], padding: int = 0
) -> None:
    """The nodes that run have the bits of a step in which all nodes run, and so have chunks."""
    part = ragged(case, absent=absent, padding=padding)
    assert_same_bits(part, run(backend, part), run(backend, case))


def assert_same_bits(part: Case, found: torch.Tensor, right: torch.Tensor) -> None:
    """The query tokens of a ragged case have the values of their nodes; padding is finite."""
    nodes, num_nodes = part.shape.nodes, part.shape.num_nodes
    queries, count = part.scope.queries.flatten().tolist(), 0
    is_node = (part.scope.ancestors != 1).flatten().tolist()  # absent nodes read node 0 alone
    for node, query in enumerate(queries):
        if is_node[node] or node % nodes == 0:
            assert torch.equal(found[query], right[node]), divmod(node, nodes)
            count += 1
    assert count < num_nodes
    assert torch.isfinite(found).all()
    assert torch.equal(found[part.shape.num_decode_query :], right[num_nodes:])


def assert_chunks_equal_whole(backend: AttentionBackend, case: Case, cuts: list[int]) -> None:
    """Row 1 of the case is one chunk from position 0. Cut into chunks, it has the same bits."""
    whole = run(backend, case)
    count = case.shape.chunk.tokens
    for start, end in zip([0, *cuts], [*cuts, count], strict=True):
        piece = replace(
            case,
            shape=replace(
                case.shape, chunk=ChunkShape(rows=1, tokens=end - start, width=end - start)
            ),
            scope=replace(case.scope, chunk=_chunk({1: (start, end - start)}, case.model.device)),
            query=case.query[start:end],
        )
        assert torch.equal(run(backend, piece), whole[start:end]), (start, end)


def decodes_of_chunk(case: Case, positions: list[int]) -> Case:
    """Tokens of the chunk of row 1, which begins at 0, as decode rows over the same keys."""
    decode = _decode(positions, case.model.device)
    some = torch.tensor(positions, device=case.model.device)
    shape = replace(
        case.shape,
        rows=len(positions),
        tree=Budget(steps=1, topk=1, nodes=1),
        chunk=ChunkShape(rows=0, tokens=0, width=0),
    )
    scope = replace(
        case.scope,
        decode=replace(decode, rows=torch.ones_like(decode.rows)),
        ancestors=torch.ones_like(some)[:, None],
        queries=torch.arange(len(positions), device=some.device)[:, None],
        chunk=_chunk({}, case.model.device),
    )
    return replace(case, shape=shape, scope=scope, query=case.query[some])


def assert_chunk_equals_decodes(
    backend: AttentionBackend, case: Case, positions: list[int]
) -> None:
    """Tokens have the same bits in the chunk of row 1, which begins at 0, and as decode rows."""
    together = run(backend, case)[positions]
    alone = run(backend, decodes_of_chunk(case, positions))
    differ = [p for p, a, b in zip(positions, together, alone, strict=True) if not a.equal(b)]
    assert not differ


def row_alone(case: Case, row: int) -> Case:
    """One decode row of a case alone, in the smallest shape that fits it."""
    nodes, scope = case.shape.nodes, case.scope
    keys = int(scope.decode.lengths[row]) + max(nodes, 1)
    shape = replace(case.shape, rows=1, pages=case.model.pages_of(keys))
    decode = DecodeRows(
        rows=scope.decode.rows[row : row + 1],
        lengths=scope.decode.lengths[row : row + 1],
        budgets=scope.decode.budgets[:, row : row + 1],
    )
    return replace(
        case,
        shape=shape,
        scope=replace(
            scope,
            decode=decode,
            ancestors=scope.ancestors[row : row + 1],
            queries=torch.arange(nodes, device=case.model.device)[None],
        ),
        query=case.query[row * nodes : (row + 1) * nodes],
    )


def chain_ancestors(rows: int, nodes: int) -> torch.Tensor:  # [rows, nodes]
    """A chain: every node sees all before it."""
    return torch.tensor([(1 << n + 1) - 1 for n in range(nodes)]).expand(rows, nodes)


def as_chain(case: Case) -> Case:
    """The same step in a shape whose trees are chains."""
    return replace(case, shape=replace(case.shape, tree=replace(case.shape.tree, topk=1)))


def level_ancestors(rng: random.Random, *, rows: int, topk: int, step: int) -> torch.Tensor:
    """Branches of a draft level: each sees one scratch node of every step before, and itself."""
    masks = [[1 << b for b in range(topk)] for _ in range(rows)]
    for depth in range(1, step):
        own = [1 << depth * topk + b for b in range(topk)]
        masks = [[row[rng.randrange(topk)] | bit for bit in own] for row in masks]
    return torch.tensor(masks)  # [rows, topk]


def _decode(lengths: list[int], device: str) -> DecodeRows:
    rows = len(lengths)
    return DecodeRows(
        rows=torch.arange(1, rows + 1, device=device),
        lengths=torch.tensor(lengths, dtype=torch.int64, device=device),
        budgets=torch.zeros(3, rows, dtype=torch.int64, device=device),
    )


def _chunk(chunks: dict[int, tuple[int, int]], device: str) -> ChunkRows:
    counts = torch.tensor([count for _, count in chunks.values()], dtype=torch.int64)
    owners = torch.arange(len(chunks)).repeat_interleave(counts)
    return ChunkRows(
        rows=torch.tensor(list(chunks), dtype=torch.int64, device=device),
        starts=torch.tensor([s for s, _ in chunks.values()], dtype=torch.int64, device=device),
        counts=counts.to(device),
        followers=torch.full((len(chunks),), -1, device=device),
        owners=owners.to(device),
        tokens=torch.zeros_like(owners).to(device),
    )
