"""Times every kernel of a speculative iteration that is neither model nor sampling, in CUDA graphs.

Run on a GPU: python -m benchmarks.kernels.time_steps
"""

from collections.abc import Callable

import torch

from benchmarks.kernels.graph_clock import graph_us
from outrider.ops.tree import draft_states_triton as states
from outrider.ops.tree.commit_triton import commit_rows, compact
from outrider.ops.tree.fill_plan_triton import fill_queries
from outrider.ops.tree.grow_tree_triton import chain_nodes, grow_level, select_nodes
from outrider.ops.tree.verify_triton import verify_tree
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


def filling(tree: Budget, rows: int) -> Call:
    num, nothing = rows * tree.nodes, ints(0)
    index, lengths = torch.arange(rows, device=DEVICE), torch.full((rows,), CONTEXT, device=DEVICE)
    nodes = ints(rows, tree.nodes, most=99), ints(rows, tree.nodes, most=5)
    pages, outputs = page_table(rows), [ints(num) for _ in range(6)]
    return lambda: fill_queries(
        nodes=nodes,
        decode=(index, lengths),
        chunk=(nothing,) * 5,
        pages=pages,
        queries=tuple(outputs[:3]),
        sampled=tuple(outputs[3:]),
        page_size=PAGE_SIZE,
        first_node=0,
    )


def drafting(tree: Budget, rows: int) -> dict[str, tuple[int, Call]]:
    topk, size = tree.topk, first_number(tree.steps + 1, tree.topk)
    scores = -torch.rand(rows, topk, device=DEVICE)
    tips = scores, ints(rows, topk), ints(rows, topk)
    likely = -torch.rand(rows * topk, topk, device=DEVICE), ints(rows * topk, topk, most=99)
    sizes = torch.tensor([tree.steps, topk, tree.nodes], device=DEVICE)
    budgets, lengths = sizes[:, None].expand(3, rows).contiguous(), ints(rows)
    # Every candidate is a child of node 0: the kernel does the same work.
    candidates = -torch.rand(rows, size, device=DEVICE), ints(rows, size), ints(rows, size) - 1
    level = tuple(each[:, : topk * topk].contiguous() for each in candidates)
    table, before = torch.zeros(rows, WIDTH, device=DEVICE, dtype=torch.bfloat16), ints(rows)
    parents = table[:, None].expand(rows, topk, WIDTH).contiguous()

    def grow() -> object:
        return grow_level(
            tips,
            likely,
            budgets=budgets,
            lengths=lengths,
            level=level,
            numbering=(2, topk, topk),
            num_tips=topk,
            step_cost=1e-3,
        )

    def plant() -> object:
        return states.plant(
            rows=before,
            lengths=lengths,
            last_tokens=before,
            states=table,
            level_lengths=before,
            lead=0,
        )

    calls: dict[str, tuple[int, Call]] = {"plant": (1, plant), "grow": (tree.steps, grow)}
    if topk > 1:
        places = ints(rows, topk)
        calls["inherit"] = (tree.steps - 1, lambda: states.inherit(parents, places))
    shape = {"nodes": tree.nodes, "steps": tree.steps}
    calls["select"] = (1, lambda: select_nodes(lengths, candidates, budgets, **shape))
    return calls


def verifying(tree: Budget, rows: int) -> dict[str, tuple[int, Call]]:
    most, nothing = tree.most_emitted, ints(0)
    tokens = ints(rows, tree.nodes)
    columns, choice = (tokens, *chain_nodes(tokens)), ints(rows, tree.nodes)
    index, lengths = torch.arange(rows, device=DEVICE), torch.full((rows,), CONTEXT, device=DEVICE)
    num_accepted, emitted, pages = ints(rows) + 2, ints(rows, most), page_table(rows)
    path = 2 * torch.arange(most, device=DEVICE).expand(rows, most).contiguous()
    calls: dict[str, tuple[int, Call]] = {"verify": (1, lambda: verify_tree(columns, choice, most))}

    def commit() -> None:
        commit_rows(
            decode=(index, lengths),
            num_accepted=num_accepted,
            emitted=emitted,
            chunk=(nothing,) * 4,
            table=(lengths, lengths),
        )

    calls["commit"] = (1, commit)
    if tree.topk > 1:
        storage = torch.zeros(
            (LAYERS, pages.numel() + 1, PAGE_SIZE, KV_WIDTH // 128, 128),
            device=DEVICE,
            dtype=torch.bfloat16,
        )
        history = index, torch.full_like(index, CONTEXT)
        calls["compact"] = (
            1,
            lambda: compact(
                storage, decode=history, path=path, num_accepted=num_accepted, pages=pages
            ),
        )
    return calls


def catching_up(tree: Budget, rows: int) -> dict[str, tuple[int, Call]]:
    most, nothing = tree.most_emitted, ints(0)
    aux_hidden_states = torch.zeros(
        rows * tree.nodes, AUX_WIDTH, device=DEVICE, dtype=torch.bfloat16
    )
    after, table = (
        aux_hidden_states[: rows * most, :WIDTH].contiguous(),
        aux_hidden_states[:rows, :WIDTH].clone(),
    )
    path, num_accepted, index = ints(rows, most), ints(rows), torch.arange(rows, device=DEVICE)

    def follow() -> object:
        return states.follow(
            aux_hidden_states,
            path,
            num_accepted,
            chunk=(nothing,) * 5,
            new_lengths=num_accepted,
            new_tokens=nothing,
            lead=0,
        )

    def keep() -> None:
        states.keep(
            after,
            table,
            num_accepted=num_accepted,
            decode_rows=index,
            most_emitted=most,
            chunk_ends=nothing,
            chunk_rows=nothing,
        )

    return {
        "chain": (1, lambda: chain_nodes(path)),
        "follow": (1, follow),
        "keep": (1, keep),
    }


if __name__ == "__main__":
    main()
