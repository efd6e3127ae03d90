"""The barriers of warps that take turns: no block is read before it is there or after it is gone.

The loops are the kernel's own; Gluon has no interpreter, so what they call is a machine of tests.
"""

from types import SimpleNamespace

import pytest
from support.warp_machine import Barrier, Machine, Tile, rebound

pytest.importorskip("triton")
from triton.experimental.gluon import language as gl

from outrider.ops.linear import turns_linear_triton as turns
from outrider.ops.linear import turns_operand_triton as operands
from outrider.ops.linear.quantised_linear_triton import slices_of
from outrider.ops.linear.turns_tiles_triton import MOST_SPLIT_TILES, OUTPUTS

LINES, BLOCK, WIDTH = 32, 128, 16
SLOTS = [2, 3, 5, 8]
# Lines and inputs: one block, a short one, as many as slots, more; slices of equal and other sizes.
SIZES = [(128, 128), (192, 160), (64, 640), (320, 896), (448, 1152), (128, 4224), (640, 2944)]


class Blocks:
    """Instead of sums: the blocks that are in them."""

    def __init__(self, *found):
        self.found = found

    def __getitem__(self, place):
        return self

    def __mul__(self, scale):
        assert [block[2:] for block in self.found] == list(scale.found)
        return self

    def __add__(self, other):
        return Blocks(*self.found, *other.found)


class Sums:
    """The memory of sums of earlier slices, by group of warps."""

    def __init__(self):
        self.found = {}

    def update(self, group, total):
        self.found[group] = total

    def get(self, group):
        return self.found[group]


class Tiles:
    """Tiles of all slots, one by one or in pairs."""

    def __init__(self, tiles, *shape, pairs=False):
        self.tiles, self.shape, self.pairs = tiles, shape, pairs
        self.dtype = gl.bfloat16

    def index(self, at):
        if not self.pairs:
            return self.tiles[at]
        pair = self.tiles[2 * at : 2 * at + 2]
        return SimpleNamespace(load=lambda layout: [tile.content for tile in pair])


def names_of(machine, program, num_programs, num_blocks, N, group_size, is_gated, finish):
    """What the loops of the kernel call."""

    def operand_of(stored, word, factor, block, *_):
        machine.pause()
        first, group = factor
        parts = [operands.part_of_lines.fn(first, 2 * group + part, N, is_gated) for part in (0, 1)]
        assert stored == [((place * num_blocks + block) * LINES, 0) for place in parts]
        assert group_size == 0 or word == [(block, place * LINES) for place in parts]
        return (first, group, block), Blocks((first, group, block))

    def multiply(w, rows, products, use_acc, is_async):
        machine.pause()
        return w, rows

    def wait(pending, deps):
        machine.pause()
        ((w, rows),) = deps
        return Blocks((*rows.content, *w))

    sums = Sums()
    fake = SimpleNamespace(
        cdiv=lambda a, b: -(-a // b), minimum=min, static_range=range, float32=None,
        program_id=lambda axis: program, num_programs=lambda axis: num_programs,
        zeros=lambda *_: Blocks(), store=sums.update, load=sums.get,
        NVMMADistributedLayout=lambda *_: None, SliceLayout=lambda *_: 0,
    )  # fmt: skip
    barriers = SimpleNamespace(wait=machine.wait, arrive=machine.arrive, expect=machine.expect)
    return {
        "gl": fake, "mbarrier": barriers, "range": range, "_PARTS": 4, "_LINES": LINES,
        "_BLOCK": BLOCK, "GROUPS": 2, "operand_of": operand_of, "warpgroup_mma": multiply,
        "warpgroup_mma_wait": wait, "_finish": finish, "is_turned": lambda kind: False,
        "is_summed": lambda size: False, "_code_layout": lambda *_: 0, "_num_words": lambda kind: 0,
        "tma": SimpleNamespace(async_copy_global_to_shared=machine.copy),
        "overlap": SimpleNamespace(wait=lambda on: machine.pause(), release=lambda on: None),
        "_cells": lambda partial, tile, total: tile,
        "line_words": lambda words, factors, first, group, *_: (None, (first, group)),
    }  # fmt: skip


JITTED = (
    turns._load_weights, turns._word_row, turns._unit_of, turns._load_units, turns._sum_blocks,
    turns._sum_slices, turns._multiply_units, operands.part_of_lines, operands.read_block,
)  # fmt: skip


def run_program(seed, program, num_programs, num_rows, size, slots, *, group_size, is_gated):
    """Run one block of threads; the sums that both groups of warps finished, by unit."""
    rows, (lines, inputs), machine, finished = 16, size, Machine(seed), {}
    slices, slice_size = slices_of(lines, inputs)
    N, outputs = (lines // 2, OUTPUTS // 2) if is_gated else (lines, OUTPUTS)
    row_tiles, num_blocks = -(-num_rows // rows), -(-inputs // BLOCK)
    num_tiles = -(-N // outputs) * row_tiles
    is_split = slices > 1 and row_tiles <= MOST_SPLIT_TILES
    is_chained = slices > 1 and not is_split
    num_units, unit_size = (num_tiles * slices, slice_size) if is_split else (num_tiles, inputs)
    each = -(-unit_size // BLOCK)

    def finish(total, residual, out, partial, arrivals, unit, _t, _s, group, row, first, *_):
        block = unit // num_tiles * each
        right = [
            (row, k * BLOCK, first, group, k) for k in range(block, min(block + each, num_blocks))
        ]
        assert list(total.found) == right
        finished.setdefault(unit, []).append(group)

    names = names_of(
        machine, program, num_programs, num_blocks, N, group_size, is_gated, finish
    )  # fmt: skip
    own = rebound(JITTED, names)
    x_tiles = Tiles([Tile() for _ in range(slots)], slots, rows, BLOCK)
    parts, words = ([Tile() for _ in range(4 * slots)] for _ in range(2))
    full, free = (Tiles([Barrier(n) for _ in range(slots)]) for n in (1, 2))
    codes = SimpleNamespace(block_shape=[LINES, WIDTH], dtype=gl.int32, num_bytes=LINES * WIDTH * 4)
    x, scales = SimpleNamespace(num_bytes=rows * BLOCK * 2), SimpleNamespace(num_bytes=LINES * 4)

    def load():
        own["_load_units"](
            x, codes, scales, x_tiles, Tiles(parts), Tiles(words), full, free, N, inputs,
            num_tiles, row_tiles, num_units, unit_size, is_gated, group_size, "", True,
        )  # fmt: skip

    def multiply(group):
        own["_multiply_units"](
            x_tiles, Tiles(parts, pairs=True), Tiles(words, pairs=True), full, free,
            0, 0, 0, 0, 0, 0, num_rows, N, inputs, num_tiles, row_tiles, num_units, slices,
            unit_size, slice_size, group, "int4", group_size, "", False, is_gated, False, is_split,
            is_chained, True,
        )  # fmt: skip

    machine.run({"load": load, "first": lambda: multiply(0), "second": lambda: multiply(1)})
    assert sorted(finished) == list(range(program, num_units, num_programs))
    assert all(sorted(groups) == [0, 1] for groups in finished.values())
    assert all(barrier.num_bytes == 0 for barrier in full.tiles)


@pytest.mark.parametrize("size", SIZES)
def test_every_unit_sums_its_blocks_in_order_whatever_warp_is_slow(size):
    for seed, slots in enumerate(SLOTS):
        for num_programs in (1, 3):
            is_gated, group_size = size[0] % 64 == 0 and seed % 2 == 1, (0, 128)[seed // 2]
            for num_rows in (13, 30, 40):  # one tile of rows, two, three
                run_program(
                    seed, 0, num_programs, num_rows, size, slots,
                    group_size=group_size, is_gated=is_gated,
                )  # fmt: skip


def test_one_slot_is_too_few():
    with pytest.raises(AssertionError, match="deadlock"):
        run_program(0, 0, 1, 13, (128, 640), 1, group_size=0, is_gated=False)
