"""The compiled kernels of a step give what the torch reference gives, captured or not."""

import random
from dataclasses import fields, replace

import pytest
import torch
from support.block_trees import check_best_tree, check_wide_growth
from support.step_kernels import (
    assert_same,
    check_calibration,
    check_chain,
    check_commit,
    check_fill,
    check_growth,
    check_place,
    check_ragged,
    check_share,
    check_start,
    check_states,
    check_verify,
    moved,
    node_0,
    random_likely,
    random_verify_result,
    some_tree,
)

from outrider.ops.tree.chain import chain
from outrider.ops.tree.draft_tree import DraftTree
from outrider.ops.tree.plan_rows import DecodeRows
from outrider.ops.tree.select_nodes import select_nodes
from outrider.ops.tree.verify import verify
from outrider.spec.draft_slots import DraftSlots
from outrider.spec.grow_tree import grow, room_for
from outrider.wire.draft_budget import Budget

CHECKS = [
    check_fill,
    check_ragged,
    check_place,
    check_share,
    check_calibration,
    check_growth,
    check_best_tree,
    check_wide_growth,
    check_verify,
    check_commit,
    check_chain,
    check_start,
    check_states,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_kernels_equal_the_reference_on_hundreds_of_random_steps(check):
    for seed in range(300):
        check(seed, "cuda")


def test_the_largest_trees_equal_the_reference():
    for seed, tree in enumerate(
        [
            Budget(steps=2, topk=64, nodes=64),
            Budget(steps=63, topk=1, nodes=64),
            Budget(steps=16, topk=4, nodes=64),
            Budget(steps=5, topk=16, nodes=64),
        ]
    ):
        decode = decode_rows_of(rows=33, tree=tree)
        likely = likely_of(tree, rows=33, seed=seed)
        there, likely_there = moved(decode, "cuda"), [moved(each, "cuda") for each in likely]
        assert_same(grown(tree, there, likely_there), grown(tree, decode, likely))


def test_a_recorded_round_follows_its_inputs():
    """One graph from log-probabilities to the verdict, replayed on inputs it has not seen."""
    tree, rows = Budget(steps=5, topk=4, nodes=16), 7
    decode = moved(decode_rows_of(rows=rows, tree=tree), "cuda")
    likely = [moved(each, "cuda") for each in likely_of(tree, rows=rows, seed=0)]
    choice = torch.zeros(rows, tree.nodes, dtype=torch.int64, device="cuda")

    def program():
        grown_tree = grown(tree, decode, likely)
        verify_result = verify(grown_tree, choice, tree.most_emitted)
        return grown_tree, verify_result, chain(verify_result.emitted)

    graph, (found, verify_result, follow_up) = recorded(program)
    for seed in range(1, 20):
        fresh = likely_of(tree, rows=rows, seed=seed)
        for mine, other in zip(likely, fresh, strict=True):
            mine.logprobs.copy_(other.logprobs)
            mine.tokens.copy_(other.tokens)
        right = grown(tree, moved(decode, "cpu"), fresh)
        chosen, _ = random_verify_result(random.Random(seed), right)
        choice.copy_(chosen)
        graph.replay()
        assert_same(found, right)
        right_result = verify(right, chosen, tree.most_emitted)
        assert_same(verify_result, right_result)
        assert_same(follow_up, chain(right_result.emitted))


def test_nothing_waits_for_the_host():
    tree = Budget(steps=3, topk=3, nodes=8)
    decode = moved(decode_rows_of(rows=3, tree=tree), "cuda")
    likely = [moved(each, "cuda") for each in likely_of(tree, rows=3, seed=0)]
    choice = torch.zeros(3, tree.nodes, dtype=torch.int64, device="cuda")
    verify(grown(tree, decode, likely), choice, tree.most_emitted)  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        verify(grown(tree, decode, likely), choice, tree.most_emitted)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_absent_nodes_are_never_accepted():
    tree = some_tree(random.Random(4), 9, 16)
    tree = replace(tree, tokens=tree.tokens.index_fill(1, torch.arange(1, 16), -1))
    choice = torch.zeros(9, 16, dtype=torch.int64)
    found = verify(moved(tree, "cuda"), choice.cuda(), 6)
    assert found.num_accepted.tolist() == [0] * 9
    assert found.drafted.tolist() == [0] * 9


def decode_rows_of(*, rows: int, tree: Budget) -> DecodeRows:
    sizes = torch.tensor([tree.steps, tree.topk, tree.nodes])
    return DecodeRows(
        rows=torch.arange(rows),
        lengths=torch.arange(rows) * 7,
        budgets=sizes[:, None].expand(3, rows).contiguous(),
    )


def likely_of(tree: Budget, *, rows: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    widths = [1] + [tree.topk] * (tree.steps - 1)
    return [random_likely(generator, rows * width, tree.topk) for width in widths]


def grown(tree: Budget, decode: DecodeRows, likely) -> DraftTree:
    root = decode.rows + 1
    tips, candidates, slots = (
        node_0(root, decode.lengths),
        room_for(tree, root),
        DraftSlots(tree=tree),
    )
    for depth, each in enumerate(likely, start=1):
        tips = grow(tips, each, decode, candidates=candidates, slots=slots, depth=depth)
    return select_nodes(root, candidates, decode.budgets, tree).tree


def recorded(program):
    """A CUDA graph of the program, warmed up first so that its kernels are compiled."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        program()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = program()
    return graph, output


def test_trees_of_one_row_repeated_are_read_by_their_strides():
    tokens = torch.randint(0, 9, (5, 6))
    dense = chain(tokens)
    repeated = {f.name: getattr(dense, f.name).cuda()[:1].expand(5, 6) for f in fields(dense)}
    tree = DraftTree(**repeated | {"tokens": tokens.cuda()})
    choice = torch.randint(0, 9, (5, 6))
    assert_same(verify(tree, choice.cuda(), 6), verify(dense, choice, 6))
