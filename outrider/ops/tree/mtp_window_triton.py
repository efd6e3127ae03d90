"""Windows of draft modules over decoding rows, as `spec/mtp_window.py` says them.

Tokens, indices and counts are int64, features of any one type; all are contiguous.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap

_BLOCK = 2048
_LEAST = 16  # lanes of a tile, so that short windows share one compiled kernel

# By place among the arguments: indices are views that lie anywhere, sizes change with the step.
_OPEN_POINTERS, _OPEN_SIZES = range(16), range(16, 20)
_FEATURE_POINTERS, _FEATURE_SIZES = (0, 1, 2, 5), range(7, 11)
_REMEMBER_POINTERS, _REMEMBER_SIZES = (0, 1, 2, 3, 5, 7), range(8, 11)
_TAKE_POINTERS, _TAKE_SIZES = range(7), range(7, 11)


class Opened(NamedTuple):
    """One entry per row and column or node; what `Windows` and `Seen` hold."""

    tokens: torch.Tensor  # [rows, columns]
    num_known: torch.Tensor  # [rows]
    first: torch.Tensor  # [rows]
    num_real: torch.Tensor  # [rows]
    tips: torch.Tensor  # [rows]
    positions: torch.Tensor  # [rows]
    node_tokens: torch.Tensor  # [rows, width]
    depths: torch.Tensor  # [rows, width]
    ancestors: torch.Tensor  # [rows, width]
    is_idle: torch.Tensor  # [rows, width] bool


@triton.jit
def _token_at(column, old, new, room, most_emitted):
    """Remembered tokens, then emitted ones, then nothing yet."""
    is_new = (column >= room) & (column < room + most_emitted)
    before = tl.load(old + column, mask=column < room, other=0)
    return tl.where(column < room, before, tl.load(new + column - room, mask=is_new, other=0))


@triton.jit(do_not_specialize=_OPEN_SIZES, do_not_specialize_on_alignment=_OPEN_POINTERS)
def _open_kernel(
    rows,
    lengths,
    num_accepted,
    emitted,  # [rows, most_emitted]
    old_tokens,  # [table_rows, room]
    old_num,  # [table_rows]
    out_rows,  # [rows], written, as all below
    out_lengths,
    tokens,  # [rows, columns]
    num_known,
    first,
    num_real,
    tips,
    positions,
    node_tokens,  # [3, rows, width] tokens, depths, ancestors
    is_idle,  # [rows, width] int8
    room,
    most_emitted,
    columns,
    width,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    num_rows = tl.num_programs(0).to(tl.int64)
    channel = tl.arange(0, BLOCK).to(tl.int64)
    overlap.begin(PDL)
    row, length = tl.load(rows + place), tl.load(lengths + place)
    num_new = tl.load(num_accepted + place) + 1
    old, new = old_tokens + row * room, emitted + place * most_emitted
    end = room + num_new
    begin = tl.maximum(room - tl.load(old_num + row), end - width)
    tl.store(out_rows + place, row)
    tl.store(out_lengths + place, length - room + begin)
    tl.store(num_known + place, end)
    tl.store(first + place, begin)
    tl.store(num_real + place, end - begin)
    tl.store(tips + place, place * width + end - begin - 1)
    tl.store(positions + place, length + num_new + 1)
    token = _token_at(channel, old, new, room, most_emitted)
    tl.store(tokens + place * columns + channel, token, mask=channel < columns)
    node, is_inside = place * width + channel, channel < width
    column = tl.minimum(begin + channel, columns - 1)
    stride = num_rows * width
    idle = channel >= end - begin
    path = (tl.full([BLOCK], 2, tl.int64) << (channel & 63)) - 1
    tl.store(node_tokens + node, _token_at(column, old, new, room, most_emitted), mask=is_inside)
    tl.store(node_tokens + stride + node, channel, mask=is_inside)
    tl.store(node_tokens + 2 * stride + node, tl.where(idle, 1, path), mask=is_inside)
    tl.store(is_idle + node, idle.to(tl.int8), mask=is_inside)


def open_windows(
    decode: tuple[torch.Tensor, torch.Tensor],  # rows, lengths [rows]
    verify_result: tuple[torch.Tensor, torch.Tensor],  # kept [rows], emitted [rows, most_emitted]
    memory: tuple[torch.Tensor, torch.Tensor],  # tokens [table_rows, room], num [table_rows]
    *,
    out: tuple[torch.Tensor, torch.Tensor],  # rows and starts of the windows [rows], written
    width: int,
    num_modules: int,
) -> Opened:
    """Where the window of every row lies, and what the first module runs in it."""
    rows, emitted, room = decode[0], verify_result[1], memory[0].shape[1]
    num_rows, most_emitted = emitted.shape
    columns = room + most_emitted + num_modules + 1
    tokens = rows.new_empty(num_rows, columns)
    facts = rows.new_empty(5, num_rows).unbind(0)
    nodes = rows.new_empty(3, num_rows, width)
    is_idle = rows.new_empty(num_rows, width, dtype=torch.int8)
    kernel: Any = _open_kernel[(num_rows,)]
    kernel(
        *decode,
        *verify_result,
        *memory,
        *out,
        tokens,
        *facts,
        nodes,
        is_idle,
        room,
        most_emitted,
        columns,
        width,
        BLOCK=max(_LEAST, triton.next_power_of_2(max(columns, width))),
        PDL=overlap.is_on(rows),
        num_warps=1,
        **overlap.options(rows),
    )
    columns_of_rows = (tokens, *facts, *nodes.unbind(0), is_idle.view(torch.bool))
    return Opened._make(columns_of_rows)


@triton.jit(do_not_specialize=_FEATURE_SIZES, do_not_specialize_on_alignment=_FEATURE_POINTERS)
def _aux_hidden_kernel(
    rows,
    first,
    num_real,
    old,  # [table_rows, room, size]
    new,  # [rows, nodes, size]
    path,  # [rows, most_emitted]
    out,  # [rows * width, size], written
    room,
    most_emitted,
    nodes,
    width,
    size,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    index = place // width
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < size
    overlap.begin(PDL)
    column = tl.load(first + index) + place % width
    column = tl.minimum(column, room + most_emitted - 1)
    wanted = inside & (place % width < tl.load(num_real + index))  # idle nodes read zeros
    is_old = column < room
    before = old + (tl.load(rows + index) * room + tl.minimum(column, room - 1)) * size
    depth = tl.maximum(column - room, 0)
    node = tl.load(path + index * most_emitted + depth)
    after = new + (index * nodes + node) * size
    remembered = tl.load(before + channel, mask=wanted & is_old, other=0.0)
    brought = tl.load(after + channel, mask=wanted & (column >= room), other=0.0)
    tl.store(out + place * size + channel, tl.where(is_old, remembered, brought), mask=inside)


def window_hidden_states(
    rows: torch.Tensor,  # [rows]
    nodes: tuple[torch.Tensor, torch.Tensor],  # [rows] first column, and nodes that are real
    old: torch.Tensor,  # [table_rows, room, size] remembered
    new: torch.Tensor,  # [rows, nodes, size] of the step
    path: torch.Tensor,  # [rows, most_emitted]
    width: int,
) -> torch.Tensor:  # [rows * width, size]
    """The target's features in every window, along the kept paths; zeros for idle nodes."""
    num_rows, num_nodes, size = new.shape
    out = new.new_empty(num_rows * width, size)
    block = min(_BLOCK, triton.next_power_of_2(size))
    kernel: Any = _aux_hidden_kernel[(num_rows * width, triton.cdiv(size, block))]
    kernel(
        rows,
        *nodes,
        old,
        new,
        path,
        out,
        old.shape[1],
        path.shape[1],
        num_nodes,
        width,
        size,
        BLOCK=block,
        PDL=overlap.is_on(rows),
        **overlap.options(rows),
    )
    return out


@triton.jit(do_not_specialize=_REMEMBER_SIZES, do_not_specialize_on_alignment=_REMEMBER_POINTERS)
def _remember_kernel(
    rows,
    num_accepted,
    first,
    tokens,  # [rows, columns]
    aux_hidden_states,  # [rows, width, size] of the windows
    old_tokens,  # [table_rows, room], written, as both below
    old_hidden_states,  # [table_rows, room, size]
    old_num,  # [table_rows]
    room,
    columns,
    width,
    size,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    index, entry = place // room, place % room
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_leader = tl.program_id(1) == 0
    overlap.begin(PDL)
    row, num_new = tl.load(rows + index), tl.load(num_accepted + index) + 1
    column = num_new + entry
    node = column - tl.load(first + index)  # before the window nothing is worth remembering
    inside = (channel < size) & (node >= 0)
    source = aux_hidden_states + (index * width + tl.maximum(node, 0)) * size
    goal = row * room + entry
    value = tl.load(source + channel, mask=inside)
    tl.store(old_hidden_states + goal * size + channel, value, mask=inside)
    token = tl.load(tokens + index * columns + column)
    tl.store(old_tokens + goal, token, mask=is_leader)
    is_first = is_leader & (entry == 0)
    num = tl.minimum(tl.load(old_num + row, mask=is_first, other=0) + num_new, room)
    tl.store(old_num + row, tl.where(row > 0, num, 0), mask=is_first)


def remember(
    facts: tuple[torch.Tensor, torch.Tensor, torch.Tensor],  # rows, kept, first [rows]
    tokens: torch.Tensor,  # [rows, columns]
    aux_hidden_states: torch.Tensor,  # [rows, width, size] of the windows
    memory: tuple[torch.Tensor, torch.Tensor, torch.Tensor],  # tokens, features, num; written
) -> None:
    """Keep the newest pairs of every row; row 0 never has any."""
    num_rows, width, size = aux_hidden_states.shape
    room = memory[0].shape[1]
    block = min(_BLOCK, triton.next_power_of_2(size))
    kernel: Any = _remember_kernel[(num_rows * room, triton.cdiv(size, block))]
    kernel(
        *facts,
        tokens,
        aux_hidden_states,
        *memory,
        room,
        tokens.shape[1],
        width,
        size,
        BLOCK=block,
        PDL=overlap.is_on(tokens),
        **overlap.options(tokens),
    )


@triton.jit(do_not_specialize=_TAKE_SIZES, do_not_specialize_on_alignment=_TAKE_POINTERS)
def _take_kernel(
    drafted,  # [rows]
    tokens,  # [rows, columns], written
    num_known,
    first,
    rows,
    drafts,  # [table_rows, modules], written
    queries,  # [rows, width], written
    module,
    columns,
    modules,
    width,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK).to(tl.int64)
    overlap.begin(PDL)
    token, row = tl.load(drafted + place), tl.load(rows + place)
    own = tl.load(num_known + place) + module
    column = tl.minimum(tl.load(first + place) + channel + module + 1, columns - 1)
    known = tl.load(tokens + place * columns + column)
    tl.store(
        queries + place * width + channel, tl.where(column == own, token, known), channel < width
    )
    tl.store(tokens + place * columns + own, token)
    tl.store(drafts + row * modules + module, token)


def take(
    drafted: torch.Tensor,  # [rows]
    tokens: torch.Tensor,  # [rows, columns], written
    facts: tuple[torch.Tensor, torch.Tensor],  # num_known, first [rows]
    rows: torch.Tensor,  # [rows]
    drafts: torch.Tensor,  # [table_rows, modules], written
    queries: torch.Tensor,  # [rows * width], written
    module: int,
) -> None:
    """Note what a module drafted, and put in place what the next one runs."""
    num_rows, columns = tokens.shape
    width = queries.shape[0] // num_rows
    kernel: Any = _take_kernel[(num_rows,)]
    kernel(
        drafted,
        tokens,
        *facts,
        rows,
        drafts,
        queries,
        module,
        columns,
        drafts.shape[1],
        width,
        BLOCK=max(_LEAST, triton.next_power_of_2(width)),
        PDL=overlap.is_on(rows),
        num_warps=1,
        **overlap.options(rows),
    )
