"""Linear layers by tiles that TMA loads, interpreted. tests/gpu compiles them."""

import pytest
import torch
import torch.nn.functional as F
from support.linear_cases import SHAPES, operands

pytest.importorskip("triton")
from outrider.ops.linear.bulk_linear_triton import (
    MOST_SHARED,
    BulkTile,
    choose_bulk_tile,
    launch_bulk,
)

ALIGNED = [*(shape for shape in SHAPES if shape[2] % 4 == 0), (17, 65, 132)]
TILES = [
    BulkTile(rows=16, columns=32, stages=2, num_warps=4),
    BulkTile(rows=32, more=16, columns=32, stages=2, num_warps=4),
]


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("shape", ALIGNED)
def test_a_product_is_that_of_torch(shape, tile):
    x, weight, residual = operands(*shape)
    plain = launch_bulk(x, weight, x, tile=tile, has_residual=False, is_gated=False)
    torch.testing.assert_close(plain, F.linear(x, weight))
    total = launch_bulk(x, weight, residual, tile=tile, has_residual=True, is_gated=False)
    torch.testing.assert_close(total, residual + F.linear(x, weight))


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("shape", ALIGNED)
def test_a_gated_product_multiplies_the_activated_gate_with_the_other_half(shape, tile):
    rows, outputs, inputs = shape
    x, weight, _ = operands(rows, 2 * outputs, inputs)
    gate, up = F.linear(x, weight).chunk(2, dim=-1)
    got = launch_bulk(x, weight, x, tile=tile, has_residual=False, is_gated=True)
    torch.testing.assert_close(got, F.silu(gate) * up)


@pytest.mark.parametrize("size", [576, 4096, 6144, 28672])
def test_the_chosen_tiles_fit_in_shared_memory(size):
    for num_rows in (65, 96, 97, 128, 129, 192, 193, 1024, 1025, 8192):
        for is_gated in (False, True):
            tile = choose_bulk_tile(num_rows, size, is_gated=is_gated)
            assert tile.stages * (tile.rows + tile.more + tile.columns) * 64 * 2 <= MOST_SHARED
            assert tile.columns >= (128 if is_gated else 64)  # what tensor cores take at least
