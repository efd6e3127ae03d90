"""How many rows a library's product needs, so that the bits of a row do not depend on the others.

In float32 MKL computes 1, 2 to 3, and whole groups of 4 rows by three formulas. Several threads
divide the rows, so that of 5 to 7 and of 9 to 11 rows one of them gets less than 4. Multiples of 4
have the same bits with 1 to 8 threads (measured: docs/lab/log.md).
"""

import torch
import torch.nn.functional as F

ROW_GROUP = 4


def pad_product(x: torch.Tensor) -> torch.Tensor:  # [..., n, in] -> [..., n or more, in]
    """`x` itself if its rows are whole groups, else with rows of zeros appended."""
    extra = -x.shape[-2] % ROW_GROUP
    return F.pad(x, (0, 0, 0, extra)) if extra else x
