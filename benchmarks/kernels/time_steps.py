"""Times every kernel of a speculative iteration that is neither model nor sampling, in CUDA graphs.

Run on a GPU: python -m benchmarks.kernels.time_steps
"""

from collections.abc import Callable

import torch

from benchmarks.kernels.graph_clock import graph_us
from outrider.ops.sampling.top_tokens import TopTokens
from outrider.ops.tree.candidates import Candidates, Frontier, TreeLevel
from outrider.ops.tree.chain import chain
from outrider.ops.tree.commit_rows import commit_rows
from outrider.ops.tree.compact_kv import compact_kv
from outrider.ops.tree.draft_hidden_states import (
    gather_accepted,
    parent_hidden_states,
    start_round,
    store_hidden_states,
)
from outrider.ops.tree.draft_tree import DraftTree, StepOutcome, VerifyResult
from outrider.ops.tree.fill_queries import fill_queries
from outrider.ops.tree.grow_level import grow_level
from outrider.ops.tree.plan_rows import ChunkRows, DecodeRows, Queries, Sampled
from outrider.ops.tree.select_nodes import select_nodes
from outrider.ops.tree.verify import verify
from outrider.spec.grow_tree import first_number
from outrider.wire.draft_budget import Budget

DEVICE = "cuda"
REPEATS = 50  # of one call in a graph
WIDTH, AUX_WIDTH = 4096, 3 * 4096  # of an EAGLE-3 head for an 8B model
LAYERS, KV_WIDTH, PAGE_SIZE, CONTEXT = 32, 2 * 8 * 128, 16, 1024
TREES = {
    "chain of 5": Budget(steps=5, topk=1, nodes=6),
    "tree 5x4, 16 nodes": Budget(steps=5, topk=4, nodes=16),
    "tree 7x8, 64 nodes": Budget(steps=7, topk=8, nodes=64),
}

Call = Callable[[], object]


def main() -> None:
    print(torch.cuda.get_device_name())
    for name, tree in TREES.items():
        for rows in (1, 8, 64):
            calls = calls_of(tree, rows)
            times = {part: (count, time_us(call)) for part, (count, call) in calls.items()}
            total = sum(count * each for count, each in times.values())
            num = sum(count for count, _ in times.values())
            parts = "  ".join(f"{part} {count}x{each:.1f}" for part, (count, each) in times.items())
            print(f"{name}, {rows} rows: {num} launches, {total:.0f} us\n    {parts}")


def time_us(call: Call) -> float:
    """Microseconds of one call among many of its kind, one after another in a graph."""

    def run() -> None:
        for _ in range(REPEATS):
            call()

    return graph_us(run, skip=1) / REPEATS


def calls_of(tree: Budget, rows: int) -> dict[str, tuple[int, Call]]:
    """Every part by name: how often an iteration calls it, and a call."""
    calls = {**drafting(tree, rows), **verifying(tree, rows), **catching_up(tree, rows)}
    num_fills = tree.steps - 1 + 2
    return {"fill": (num_fills, filling(tree, rows)), **calls}


def ints(*size: int, most: int = 1) -> torch.Tensor:
    return torch.randint(0, most, size, device=DEVICE)


def page_table(rows: int) -> torch.Tensor:
    num_pages = (CONTEXT + 64) // PAGE_SIZE
    return torch.arange(1, rows * num_pages + 1, device=DEVICE).view(rows, num_pages)


def decode_rows(tree: Budget, rows: int) -> DecodeRows:
    sizes = torch.tensor([tree.steps, tree.topk, tree.nodes], device=DEVICE)
    return DecodeRows(
        rows=torch.arange(rows, device=DEVICE),
        lengths=torch.full((rows,), CONTEXT, device=DEVICE),
        budgets=sizes[:, None].expand(3, rows).contiguous(),
    )


def no_chunks() -> ChunkRows:
    none = ints(0)
    return ChunkRows(rows=none, starts=none, counts=none, followers=none, owners=none, tokens=none)


def filling(tree: Budget, rows: int) -> Call:
    num, decode, chunk, pages = (
        rows * tree.nodes,
        decode_rows(tree, rows),
        no_chunks(),
        page_table(rows),
    )
    nodes = chain(ints(rows, tree.nodes, most=99))
    queries = Queries(
        tokens=ints(num),
        positions=ints(num),
        slots=ints(num),
        of_nodes=ints(rows, tree.nodes),
        adapters=ints(0),
        window_slots=ints(0),
    )
    sampled = Sampled(index=ints(num), rows=ints(num), positions=ints(num))
    return lambda: fill_queries(
        nodes,
        decode,
        chunk,
        pages=pages,
        queries=queries,
        sampled=sampled,
        page_size=PAGE_SIZE,
        first_node=0,
    )


def drafting(tree: Budget, rows: int) -> dict[str, tuple[int, Call]]:
    topk, size = tree.topk, first_number(tree.steps + 1, tree.topk)
    decode, nodes = decode_rows(tree, rows), chain(ints(rows, topk))
    tips = Frontier(
        scores=-torch.rand(rows, topk, device=DEVICE),
        numbers=ints(rows, topk),
        parent_tips=ints(rows, topk),
        positions=ints(rows, topk),
        nodes=nodes,
    )
    logprobs = -torch.rand(rows * topk, topk, device=DEVICE)
    top = TopTokens(logprobs=logprobs, tokens=ints(rows * topk, topk, most=99))
    # Every candidate is a child of node 0: the kernel does the same work.
    candidates = random_candidates(rows, size)
    own = random_candidates(rows, topk * topk)
    level = TreeLevel(depth=2, first_number=topk, first_node=topk, num_tips=topk)
    table, root = torch.zeros(rows, WIDTH, device=DEVICE, dtype=torch.bfloat16), ints(rows)
    parents = table[:, None].expand(rows, topk, WIDTH).contiguous()

    def grow() -> object:
        return grow_level(tips, top, decode, candidates=own, level=level)

    def start() -> object:
        return start_round(
            decode,
            last_tokens=root,
            hidden_states=table,
            first_lengths=root,
            level_lengths=root,
            lead=0,
        )

    calls: dict[str, tuple[int, Call]] = {"start": (1, start), "grow": (tree.steps, grow)}
    if topk > 1:
        parent_tips = ints(rows, topk)
        calls["parents"] = (tree.steps - 1, lambda: parent_hidden_states(parents, parent_tips))
    calls["select"] = (1, lambda: select_nodes(root, candidates, decode.budgets, tree))
    return calls


def random_candidates(rows: int, size: int) -> Candidates:
    return Candidates(
        scores=-torch.rand(rows, size, device=DEVICE),
        tokens=ints(rows, size),
        parents=ints(rows, size) - 1,
    )


def verifying(tree: Budget, rows: int) -> dict[str, tuple[int, Call]]:
    most, decode, chunk = tree.most_emitted, decode_rows(tree, rows), no_chunks()
    nodes: DraftTree = chain(ints(rows, tree.nodes))
    choice, pages = ints(rows, tree.nodes), page_table(rows)
    result = VerifyResult(
        path=2 * torch.arange(most, device=DEVICE).expand(rows, most).contiguous(),
        num_accepted=ints(rows) + 2,
        emitted=ints(rows, most),
        drafted=ints(rows),
    )
    lengths, last_tokens, nothing = ints(rows), ints(rows), ints(0)

    def commit() -> None:
        commit_rows(decode, result, chunk, nothing, lengths=lengths, last_tokens=last_tokens)

    calls: dict[str, tuple[int, Call]] = {
        "verify": (1, lambda: verify(nodes, choice, most)),
        "commit": (1, commit),
    }
    if tree.topk > 1:
        storage = torch.zeros(
            (LAYERS, pages.numel() + 1, PAGE_SIZE, KV_WIDTH // 128, 128),
            device=DEVICE,
            dtype=torch.bfloat16,
        )
        calls["compact"] = (1, lambda: compact_kv(storage, decode, result, pages))
    return calls


def catching_up(tree: Budget, rows: int) -> dict[str, tuple[int, Call]]:
    most, decode, chunk, nothing = tree.most_emitted, decode_rows(tree, rows), no_chunks(), ints(0)
    states = torch.zeros(rows * tree.nodes, AUX_WIDTH, device=DEVICE, dtype=torch.bfloat16)
    after, table = states[: rows * most, :WIDTH].contiguous(), states[:rows, :WIDTH].clone()
    path, num_accepted, lengths = ints(rows, most), ints(rows), ints(rows)
    result = VerifyResult(
        path=path, num_accepted=num_accepted, emitted=ints(rows, most), drafted=ints(rows)
    )
    outcome = StepOutcome(
        aux_hidden_states=states,
        node_queries=torch.arange(rows * tree.nodes, device=DEVICE).view(rows, tree.nodes),
        verify_result=result,
        chunk_choice=nothing,
    )

    def gather() -> object:
        return gather_accepted(
            outcome, decode, chunk, new_lengths=lengths, new_tokens=nothing, lead=0, lookahead=1
        )

    def store() -> None:
        store_hidden_states(
            after,
            table,
            num_accepted=num_accepted,
            decode_rows=decode.rows,
            most_emitted=most,
            chunk_ends=nothing,
            chunk_rows=nothing,
        )

    return {"chain": (1, lambda: chain(path)), "gather": (1, gather), "store": (1, store)}


if __name__ == "__main__":
    main()
