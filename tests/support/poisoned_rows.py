"""Models with row state, one step at a time, on memory that holds NaN or infinity at first."""

import torch

from support.row_harness import RowHarness


def steps(harness: RowHarness, texts: dict[int, list[int]]) -> list[torch.Tensor]:
    """The logits of real tokens in chunks, chains, rejected nodes and padding."""
    wrong = [0, 0]  # rejected by the next step
    first = harness.run({}, {1: (0, texts[1][:15]), 2: (0, texts[2][:4])})
    chains = {1: (15, texts[1][15:16] + wrong), 2: (4, texts[2][4:7])}
    second = harness.run(chains, {3: (0, texts[3][:5])}, nodes=3)
    third = harness.run({1: (16, texts[1][16:19]), 2: (7, texts[2][7:10])}, {}, nodes=3)
    return [first[:19], second[:6], second[9:14], third[:6]]


def assert_blind_to_what_was_there(
    clean: RowHarness, poisoned: RowHarness, texts: dict[int, list[int]], value: float
) -> None:
    """All pages, ring buffers and states hold the value before the first step."""
    for tensor in poisoned.pool.tensors:
        if tensor.is_floating_point():
            tensor.fill_(value)
    for right, got in zip(steps(clean, texts), steps(poisoned, texts), strict=True):
        assert right.isfinite().all()
        assert torch.equal(got, right)
