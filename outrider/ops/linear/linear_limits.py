"""The sizes for which our linear kernels are used. No Triton: layers read them at load."""

import torch

MOST_SKINNY_ROWS = 64  # above, a GEMM library that may split sums is faster,
MOST_QUANTISED_ROWS = 512  # above, widening all codes first costs less than widening them often
MOST_GATED_ROWS = 256  # but the library has no gate in its epilogue,
MOST_SUMMED_ROWS = 512  # and adds a residual with other bits than ours
MOST_SMALL_ROWS = 16  # above, every program would normalise the same rows again
LEAST_SMALL_INPUTS = 16  # per row: tensor cores take this many at once
MOST_SMALL_INPUTS = 1536  # a row is held in registers, and so is that much of each weight
MOST_NORMED_INPUTS = 1024  # likewise, in float32


def fits_small(weight: torch.Tensor, *, is_normed: bool = False) -> bool:  # weight [out, in]
    """Whether the kernels for few short rows take this weight. Float32 is for tests only."""
    most = MOST_NORMED_INPUTS if is_normed else MOST_SMALL_INPUTS
    return weight.element_size() == 2 and LEAST_SMALL_INPUTS <= weight.shape[1] <= most
