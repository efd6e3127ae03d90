"""The kernels of recurrent layers, interpreted, do what the references do."""

import pytest
import torch

pytest.importorskip("triton")
from support.delta_kernels import DeltaCase, check_causal_conv, check_gated_norm, check_recurrence

from outrider.ops.recurrent.recurrent_rows import NEW_TEXT

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TYPES = [torch.float32, torch.float16]  # the interpreter does not round to bfloat16


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "case",
    [
        DeltaCase(2, 6, 12, 10),
        DeltaCase(1, 1, 5, 21, accepted_counts=(4, 1), nodes=1, chunks=()),
        DeltaCase(2, 2, 16, 16, accepted_counts=(NEW_TEXT, 3, 0), nodes=4, chunks=(1, 6, 2)),
        DeltaCase(1, 3, 8, 33, accepted_counts=(NEW_TEXT, 2, 4), nodes=2, chunks=(3, 4)),
        DeltaCase(2, 4, 12, 10, accepted_counts=(2, NEW_TEXT, 3), nodes=2, chunks=(7, 37)),
        DeltaCase(2, 4, 12, 10, accepted_counts=(2, NEW_TEXT, 3, 0), nodes=2, chunks=(0, 37, 0)),
        DeltaCase(1, 2, 20, 37, accepted_counts=(0,), chunks=(48,)),
        DeltaCase(1, 2, 20, 37, accepted_counts=(NEW_TEXT,), chunks=(48,), repeats=True),
        DeltaCase(1, 2, 20, 37, accepted_counts=(1,), chunks=(33,), is_fixed=True),
    ],
    ids=str,
)
def test_rows_read_their_states_which_take_in_what_is_committed(case, dtype):
    check_recurrence(case, (DEVICE, dtype))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("num", "width", "window"), [(1, 3, 4), (7, 37, 4), (3, 1030, 2)])
def test_the_convolution_reads_ring_buffers_and_the_step(num, width, window, dtype):
    check_causal_conv(num, width, window, (DEVICE, dtype))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("num", "heads", "dim"), [(1, 1, 1), (3, 5, 12), (2, 3, 40)])
def test_heads_are_normalised_and_gated(num, heads, dim, dtype):
    check_gated_norm(num, heads, dim, (DEVICE, dtype))
