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


def assert_logits_of(found: list[torch.Tensor], right: dict[int, torch.Tensor]) -> None:
    """The steps have the logits of whole texts, up to rounding; `right` has them by row."""
    first, second, chunk, third = found
    for got, row, begin in (
        (first[:15], 1, 0),
        (first[15:], 2, 0),
        (second[:1], 1, 15),  # the two tokens after it are rejected
        (second[3:], 2, 4),
        (chunk, 3, 0),
        (third[:3], 1, 16),
        (third[3:], 2, 7),
    ):
        torch.testing.assert_close(got, right[row][begin : begin + len(got)], rtol=0, atol=1e-4)


def assert_blind_to_what_was_there(
    right: list[torch.Tensor], poisoned: RowHarness, texts: dict[int, list[int]], value: float
) -> None:
    """All pages, ring buffers and states hold the value before the first step.

    `right` are the logits of the steps on clean memory.
    """
    for tensor in poisoned.pool.tensors:
        if tensor.is_floating_point():
            tensor.fill_(value)
    for clean, got in zip(right, steps(poisoned, texts), strict=True):
        assert clean.isfinite().all()
        assert torch.equal(got, clean)
