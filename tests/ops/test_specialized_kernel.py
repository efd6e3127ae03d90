"""Linear layers by specialised warps: their tiles, and that the kernel compiles for a Hopper here.

Gluon has no interpreter, so what the kernel computes is tested in tests/gpu.
"""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")
from outrider.ops.gpu_facts import HOPPER_SHARED
from outrider.ops.linear import specialized_tiles_triton as tiles

ROWS = [17, 32, 65, 80, 96, 97, 128, 129, 160, 161, 192, 193, 256, 257, 320, 321, 384, 385, 512]
SIZES = [576, 4096, 6144, 8192, 28672, 128256]


@pytest.mark.parametrize("size", SIZES)
def test_a_tile_covers_its_rows_and_fits_in_shared_memory(size):
    for rows in ROWS:
        tile = tiles.choose_specialized_tile(rows, size)
        assert tile.columns in (64, 128)  # wgmma multiplies 64 columns of the weight
        assert (tile.rows + tile.more) * tile.columns <= 128 * 192  # sums that registers hold
        stage = (tile.rows + tile.more + tile.columns) * tile.depth * 2
        assert 3 <= tile.stages <= tiles.LEAST_DEPTH // tile.depth
        assert tile.stages * stage <= tiles.MOST_BYTES
        assert tile.rows + tile.more >= rows / 4


def test_few_rows_and_rows_of_a_prompt_use_other_tiles():
    for rows in (1, 16, 33, 64, tiles.MOST_ROWS + 1):
        assert not tiles.specialized_pays(rows, 4096, 14336)
    assert tiles.specialized_pays(32, 4096, 14336)
    assert not tiles.specialized_pays(32, 4096, 4096)


@pytest.mark.slow
def test_the_kernel_compiles_and_keeps_its_sums_in_registers():
    # A process of its own, because kernels are interpreted in this one.
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", "support.hopper_compile"]
    command += ["32x4096", "160x4096", "160x6144", "192x128256", "384x6144", "512x4096"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    kernels = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(kernels) == 12  # each with a residual and without
    for kernel in kernels:
        assert kernel["shared_bytes"] <= HOPPER_SHARED
        assert kernel["spilled_bytes"] <= 64  # a few addresses; sums would be hundreds
        # The assembler says so when it must wait after each product: that takes twice as long.
        assert "serialized" not in kernel["log"]
