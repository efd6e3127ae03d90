"""LoRA on a CPU, where a graph break reads which rows have which adapter."""

import torch


def add_by_slot(
    out: torch.Tensor,  # [n, out] written
    x: torch.Tensor,  # [n, in]
    slots: torch.Tensor,  # [n] int64
    a: torch.Tensor,  # [slots, rank, in]
    b: torch.Tensor,  # [slots, out, rank]
) -> None:
    """Add B A x of each row's adapter, one adapter after the other."""
    for slot in range(1, len(a)):
        rows = (slots == slot).nonzero().squeeze(1)
        if not len(rows):
            continue
        # A product for each row: MKL divides the rows of one among threads, and computes few rows
        # by another formula. Measured with 1 to 16 threads, float32.
        down, up = (each[slot].t().expand(len(rows), -1, -1) for each in (a, b))
        out.index_add_(0, rows, (x[rows, None] @ down @ up).squeeze(1))
