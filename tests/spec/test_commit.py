import random

import torch
from support.steps import NO_FLAGS, batch_of, small_device
from support.trees import tree_of

from outrider.kv.kv_pool import KVLayout, KVPool
from outrider.ops.tree.verify import verify
from outrider.spec.commit import commit
from outrider.step.fill_plan import fill, resolve_lengths


def test_kept_nodes_move_to_the_positions_after_the_history():
    device = small_device(random.Random(3), page_size=4, nodes=5)
    lengths = {2: 7, 4: 2}
    for row, length in lengths.items():
        device.table.lengths[row] = length
    plan = device.planner.plan(batch_of(lengths, {}, nodes=5, topk=2), sampling_flags=NO_FLAGS)
    resolve_lengths(plan, device.table)
    #       0 -> 1 -> 3 -> 4 and 0 -> 2
    tree = tree_of([[1, 5, 6, 7, 8]] * 2, [[-1, 0, 0, 1, 3]] * 2)
    fill(plan, tree, table=device.table, attention=device.attention, page_size=4)
    layout = KVLayout(layers=2, vectors=2, width=2, page_size=4, dtype=torch.float32)
    kv = KVPool(layout, num_pages=device.num_pages, device=torch.device("cpu"))
    for layer in kv.layers:  # every slot holds its own number
        layer.copy_(torch.arange(device.num_pages * 4.0).view(-1, 4, 1, 1).expand_as(layer))
    before = kv.layers[0].clone().view(-1, 2, 2)
    verify_result = verify(tree, torch.tensor([[5, 7, 0, 9, 0], [6, 0, 3, 0, 0]]), 4)
    commit(plan, verify_result, torch.empty(0, dtype=torch.int64), table=device.table, kv=kv)
    after = kv.layers[1].view(-1, 2, 2)
    moved = {device.slot(2, 8): device.slot(2, 8), device.slot(2, 9): device.slot(2, 10)}
    moved[device.slot(4, 3)] = device.slot(4, 4)
    for goal, source in moved.items():
        assert torch.equal(after[goal], before[source])
    untouched = [s for s in range(after.shape[0]) if s not in moved]
    assert torch.equal(after[untouched], before[untouched])
    assert device.table.lengths[[2, 4]].tolist() == [7 + 3, 2 + 2]
    assert device.table.last_tokens[[2, 4]].tolist() == [9, 3]
