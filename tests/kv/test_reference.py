"""The reference backend against attention written out per query token in float64."""

import random

import pytest
import torch
from support.steps import NO_FLAGS, batch_of, small_device
from support.trees import random_tree

from outrider.ops.attention.attention_rule import AttentionRule
from outrider.step.fill_plan import fill, resolve_lengths

KV_HEADS, HEAD_DIM = 2, 8


def visible_positions(tree, row, node, length):
    """Key positions a node sees: the row's history, and the slots of its ancestors and itself."""
    mask = tree.ancestors[row, node].item()
    tail = [length + n for n in range(tree.tokens.shape[1]) if mask >> n & 1]
    return [*range(length), *tail]


def attend_to(query, layer, slots, scale):
    """[heads, dim] over the given slots, by hand."""
    flat = layer.view(-1, 2 * KV_HEADS, HEAD_DIM).double()
    group = query.shape[0] // KV_HEADS
    out = []
    for head in range(query.shape[0]):
        keys, values = flat[slots, head // group], flat[slots, KV_HEADS + head // group]
        weights = torch.softmax(keys @ query[head].double() * scale, 0)
        out.append(weights @ values)
    return torch.stack(out)


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("pad", [1, 4])
@pytest.mark.parametrize("nodes", [1, 7, 64])
@pytest.mark.parametrize("page_size", [1, 4, 16, 128])
def test_every_query_sees_its_history_and_ancestors_and_nothing_else(page_size, nodes, pad, group):
    rng = random.Random(page_size * 100 + nodes)
    torch.manual_seed(nodes)
    device = small_device(rng, page_size=page_size, nodes=nodes, pad=pad)
    lengths = {2: 11, 4: 0, 1: 23}
    chunks = {3: (5, [1, 2, 3, 4, 5, 6]), 5: (0, [9, 8])}
    for row, length in lengths.items():
        device.table.lengths[row] = length
    plan = device.planner.plan(
        batch_of(lengths, chunks, nodes=nodes, slack=2), sampling_flags=NO_FLAGS
    )
    resolve_lengths(plan, device.table)
    tree = random_tree(rng, rows=plan.shape.rows, nodes=nodes, vocab=100)
    fill(plan, tree, table=device.table, attention=device.attention, page_size=page_size)
    layer = torch.randn(device.num_pages, page_size, 2 * KV_HEADS, HEAD_DIM)
    query = torch.randn(plan.shape.num_query, KV_HEADS * group, HEAD_DIM)
    out = device.attention.run(query, layer, plan.attention, AttentionRule(scale=0.3))
    assert out.isfinite().all()
    for index, (row, length) in enumerate(lengths.items()):
        for node in range(nodes):
            seen = visible_positions(tree, index, node, length)
            slots = [device.slot(row, position) for position in seen]
            right = attend_to(query[index * nodes + node], layer, slots, 0.3)
            torch.testing.assert_close(out[index * nodes + node].double(), right, atol=1e-5, rtol=0)
    first = plan.shape.num_decode_query
    for row, (start, tokens) in chunks.items():
        for offset in range(len(tokens)):
            slots = [device.slot(row, position) for position in range(start + offset + 1)]
            right = attend_to(query[first + offset], layer, slots, 0.3)
            torch.testing.assert_close(out[first + offset].double(), right, atol=1e-5, rtol=0)
        first += len(tokens)
