"""How many rows a library's product needs, so that the bits of a row do not depend on the others.

MKL computes 1, 2 to 3, and 4 or more rows by three formulas, measured in float32 (docs/lab/log.md).
"""

import torch
import torch.nn.functional as F

LEAST_ROWS = 4


def pad_product(x: torch.Tensor) -> torch.Tensor:  # [..., n, in] -> [..., n or LEAST_ROWS, in]
    """`x` itself if it has enough rows, else with rows of zeros appended."""
    num = x.shape[-2]
    return x if num >= LEAST_ROWS else F.pad(x, (0, 0, 0, LEAST_ROWS - num))
