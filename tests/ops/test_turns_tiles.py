"""Warps take turns at the shapes and rows where an H200 was faster with them, and nowhere else."""

from dataclasses import replace

import pytest

from benchmarks.kernels.quantised_weights import random_codes
from outrider.ops.linear.kernel_weight import kernel_weight

pytest.importorskip("triton")
from outrider.ops.linear.quantised_linear_triton import no_arrivals, slices_of
from outrider.ops.linear.turns_tiles_triton import MOST_SPLIT_TILES, turns_pay

ROWS = [1, 8, 16, 17, 32, 33, 64, 65, 128, 129, 4096]
QKV, OUT, GATE, DOWN = (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)
SMALL = [(960, 640), (3072, 1024), (1536, 8960)]
BY_BYTES = {QKV: ROWS[7:], OUT: ROWS[7:], GATE: ROWS[3:], DOWN: ROWS[5:]}


@pytest.mark.parametrize("kind", ["e4m3", "int8", "int4", "e2m1"])
def test_turns_are_taken_where_they_were_measured_to_pay(kind):
    weight, expected = kernel_weight(random_codes(kind, 64, 256)), dict(BY_BYTES)
    if kind in ("int4", "e2m1"):
        expected[OUT] = ROWS[9:]
    for size in (*expected, *SMALL):
        _, slice_size = slices_of(*size)
        each = replace(weight, shape=size)
        found = [n for n in ROWS if turns_pay(n, each, slice_size=slice_size)]
        assert found == expected.get(size, []), size


@pytest.mark.parametrize("lines", [36, 192, 448, 4096, 4100])
def test_every_group_of_warps_of_a_split_tile_has_a_counter(lines):
    weight = kernel_weight(random_codes("int4", lines, 256))
    tiles = -(-lines // 128) * MOST_SPLIT_TILES
    assert len(no_arrivals(weight)) >= 2 * tiles  # lines 384 to 447 of 448 had none
