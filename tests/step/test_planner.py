import random
from dataclasses import fields, is_dataclass, replace

import pytest
import torch
from support.steps import NO_FLAGS, batch_of, small_device
from support.trees import random_tree

from outrider.ops.tree.commit_rows import commit_rows
from outrider.ops.tree.draft_tree import VerifyResult
from outrider.step.fill_plan import fill, resolve_lengths
from outrider.wire.scheduled_batch import PageGrant

NODES = 3


def planned(device, lengths, chunks, seed=0):
    for row, length in lengths.items():
        device.table.lengths[row] = length
    batch = batch_of(lengths, chunks, nodes=NODES, slack=1)
    plan = device.planner.plan(batch, sampling_flags=NO_FLAGS)
    resolve_lengths(plan, device.table)
    tree = random_tree(random.Random(seed), rows=plan.shape.rows, nodes=NODES, vocab=50)
    fill(plan, tree, table=device.table, attention=device.attention, page_size=device.page_size)
    return plan, tree


def views(record):
    """Every tensor of a plan by its dotted name."""
    found = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, torch.Tensor):
            found[field.name] = value
        elif is_dataclass(value):
            found.update({f"{field.name}.{k}": v for k, v in views(value).items()})
    return found


@pytest.mark.parametrize("pad", [1, 4])
def test_fill_writes_every_element_of_every_view(pad):
    device = small_device(random.Random(0), page_size=4, nodes=NODES, pad=pad)
    lengths, chunks = {2: 5, 1: 9}, {3: (4, [1, 2, 3]), 5: (0, [4, 5])}
    clean = {k: v.clone() for k, v in views(planned(device, lengths, chunks)[0]).items()}
    device.arena.poison()
    device.planner.forget()
    poisoned = views(planned(device, lengths, chunks)[0])
    for name, view in poisoned.items():
        assert torch.equal(view, clean[name]), name


def test_rows_that_go_on_decoding_are_not_sent_again():
    device = small_device(random.Random(0), page_size=4, nodes=NODES)
    plan, _ = planned(device, {2: 5, 4: 6}, {})
    plan.decode.rows.fill_(3)  # so it stays, unless the same is sent again
    again, _ = planned(device, {2: 6, 4: 7}, {})
    assert again.decode.rows.tolist() == [3, 3]
    other, _ = planned(device, {4: 7, 2: 6}, {})  # the same rows in another order
    assert other.decode.rows.tolist() == [4, 2]


def test_pages_that_are_granted_to_decoding_rows_go_down_alone():
    device = small_device(random.Random(0), page_size=4, nodes=NODES)
    plan, _ = planned(device, {2: 5, 4: 6}, {})
    before, inputs = device.table.pages.clone(), plan.decode.rows.tolist()
    grants = (
        PageGrant(row=2, first=7, pages=(91, 92)),
        PageGrant(row=4, first=3, pages=(93,)),
    )
    batch = replace(batch_of({2: 5, 4: 6}, {}, nodes=NODES, slack=1), grants=grants)
    device.planner.plan(batch, sampling_flags=NO_FLAGS)
    changed = {tuple(place) for place in (device.table.pages != before).nonzero().tolist()}
    assert changed == {(2, 7), (2, 8), (4, 3)}
    assert device.table.pages[2, 7:9].tolist() == [91, 92]
    assert device.table.pages[4, 3] == 93
    assert plan.decode.rows.tolist() == inputs


def test_equal_shapes_share_one_plan_and_its_addresses():
    device = small_device(random.Random(0), page_size=4, nodes=NODES)
    one, _ = planned(device, {2: 5}, {})
    two, _ = planned(device, {4: 6}, {})
    assert one is two


def test_positions_count_depth_while_slots_count_nodes():
    device = small_device(random.Random(0), page_size=4, nodes=NODES)
    plan, tree = planned(device, {2: 5}, {3: (6, [1, 2])})
    assert plan.queries.positions[:NODES].tolist() == (5 + tree.depths[0]).tolist()
    assert plan.queries.slots[:NODES].tolist() == [device.slot(2, 5 + n) for n in range(NODES)]
    assert plan.queries.positions[NODES:].tolist() == [6, 7]
    assert plan.queries.slots[NODES:].tolist() == [device.slot(3, 6), device.slot(3, 7)]


def test_each_node_and_each_chunk_end_chooses_the_token_at_its_next_position():
    device = small_device(random.Random(0), page_size=4, nodes=NODES)
    plan, tree = planned(device, {2: 5}, {3: (6, [1, 2]), 4: (0, [3])})
    assert plan.sampled.index.tolist() == [0, 1, 2, 4, 5]
    assert plan.sampled.rows.tolist() == [2, 2, 2, 3, 4]
    assert plan.sampled.positions.tolist() == [*(6 + tree.depths[0]).tolist(), 8, 1]


def test_padding_is_row_0_and_writes_only_to_page_0():
    device = small_device(random.Random(0), page_size=4, nodes=NODES, pad=4)
    plan, _ = planned(device, {2: 5}, {3: (4, [1, 2, 3])})
    assert plan.shape.rows == 4
    assert plan.shape.chunk.tokens == 4
    assert plan.decode.rows.tolist() == [2, 0, 0, 0]
    real = {device.slot(2, 5 + n) for n in range(NODES)} | {device.slot(3, 4 + n) for n in range(3)}
    others = [slot for slot in plan.queries.slots.tolist() if slot not in real]
    assert len(others) == 3 * NODES + 1
    assert all(slot < device.page_size for slot in others)


@pytest.mark.parametrize("pad", [1, 2, 7])
def test_shapes_are_multiples_of_their_buckets_and_cover_the_bounds(pad):
    device = small_device(random.Random(0), page_size=4, nodes=NODES, pad=pad)
    plan, _ = planned(device, {2: 5, 1: 9}, {3: (4, [1, 2, 3])})
    shape = plan.shape
    assert shape.rows % pad == shape.chunk.tokens % pad == shape.chunk.rows % pad == 0
    assert shape.pages % pad == 0
    assert shape.pages * 4 >= 9 + 1 + NODES


def test_commit_never_moves_row_0():
    device = small_device(random.Random(0), page_size=4, nodes=NODES)
    plan, _ = planned(device, {2: 5}, {3: (4, [1, 2, 3])})
    rows = torch.tensor([2, 0, 0])
    commit_rows(
        replace(plan.decode, rows=rows, lengths=torch.tensor([5, 0, 0])),
        VerifyResult(
            path=torch.zeros(3, 1, dtype=torch.int64),
            num_accepted=torch.zeros(3, dtype=torch.int64),
            emitted=torch.tensor([[9], [8], [8]]),
            drafted=torch.zeros(3, dtype=torch.int64),
        ),
        replace(plan.chunk, rows=rows[:0], starts=rows[:0], counts=rows[:0]),
        rows[:0],
        lengths=device.table.lengths,
        last_tokens=device.table.last_tokens,
    )
    assert device.table.lengths.tolist()[:3] == [0, 0, 6]
    assert device.table.last_tokens.tolist()[:3] == [0, 0, 9]
