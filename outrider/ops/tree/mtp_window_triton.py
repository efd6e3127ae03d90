"""Draft windows of MTP modules over decode rows, as in `mtp_window.py`.

Tokens, indices and counts are int64, aux hidden states of any one type; all are contiguous.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.tree.draft_tree import DraftTree, StepOutcome
from outrider.ops.tree.mtp_pairs import PairTable
from outrider.ops.tree.mtp_window import DraftWindows, ModuleInputs
from outrider.ops.tree.plan_rows import ChunkRows, DecodeRows

_BLOCK = 2048
_LEAST = 16  # elements of a tile, so that short windows share one compiled kernel

# By argument index. Indices are views with any alignment, and sizes change with the step: neither
# may compile a kernel again.
_OPEN_POINTERS, _OPEN_SIZES = range(16), range(16, 20)
_STATES_POINTERS, _STATES_SIZES = (0, 1, 2, 5, 6), range(8, 12)
_STORE_POINTERS, _STORE_SIZES = (0, 1, 2, 3, 5, 7), range(8, 11)
_DRAFTS_POINTERS, _DRAFTS_SIZES = range(7), range(7, 11)


@triton.jit
def _token_at(column, old, new, room, most_emitted):
    """Stored tokens, then emitted ones, then zeros."""
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
    newest,
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
    tl.store(newest + place, place * width + end - begin - 1)
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


def open_windows_triton(
    table: PairTable,
    outcome: StepOutcome,
    decode: DecodeRows,
    chunk: ChunkRows,  # of a step without chunks
    *,
    catch_up: DecodeRows,  # written
    width: int,
    num_modules: int,
) -> ModuleInputs:
    """`open_windows` without chunks, in three launches."""
    windows, nodes, is_idle = _place_windows(
        table, outcome, decode, catch_up=catch_up, width=width, num_modules=num_modules
    )
    in_windows = _states_in_windows(table, outcome, decode.rows, windows, width)
    _store_newest(table, outcome, decode.rows, windows, in_windows)
    return ModuleInputs(
        windows=windows,
        nodes=nodes,
        is_idle=is_idle,
        aux_hidden_states=in_windows,
        following=chunk.tokens,
    )


def _place_windows(
    table: PairTable,
    outcome: StepOutcome,
    decode: DecodeRows,
    *,
    catch_up: DecodeRows,  # written
    width: int,
    num_modules: int,
) -> tuple[DraftWindows, DraftTree, torch.Tensor]:  # and [rows, width] which nodes are idle
    """Where the window of every row lies, and what the first module runs in it."""
    rows, emitted, room = decode.rows, outcome.verify_result.emitted, table.pairs.tokens.shape[1]
    num_rows, most_emitted = emitted.shape
    columns = room + most_emitted + num_modules + 1
    tokens = rows.new_empty(num_rows, columns)
    per_row = rows.new_empty(5, num_rows).unbind(0)
    per_node = rows.new_empty(3, num_rows, width)
    is_idle = rows.new_empty(num_rows, width, dtype=torch.int8)
    kernel: Any = _open_kernel[(num_rows,)]
    kernel(
        rows,
        decode.lengths,
        outcome.verify_result.num_accepted,
        emitted,
        table.pairs.tokens,
        table.num,
        catch_up.rows,
        catch_up.lengths,
        tokens,
        *per_row,
        per_node,
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
    node_tokens, depths, ancestors = per_node.unbind(0)
    nodes = DraftTree(tokens=node_tokens, parents=depths, depths=depths, ancestors=ancestors)
    return _windows_of(tokens, per_row), nodes, is_idle.view(torch.bool)


def _windows_of(tokens: torch.Tensor, per_row: tuple[torch.Tensor, ...]) -> DraftWindows:
    """The values that `_open_kernel` wrote per row, by name."""
    num_known, first, num_real, newest, positions = per_row
    return DraftWindows(
        tokens=tokens,
        num_known=num_known,
        first=first,
        num_real=num_real,
        newest=newest,
        positions=positions,
    )


@triton.jit(do_not_specialize=_STATES_SIZES, do_not_specialize_on_alignment=_STATES_POINTERS)
def _states_kernel(
    rows,
    first,
    num_real,
    old,  # [table_rows, room, size]
    new,  # [num_query, size]
    node_queries,  # [rows, nodes]
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
    after = new + (tl.load(node_queries + index * nodes) + node) * size
    stored = tl.load(before + channel, mask=wanted & is_old, other=0.0)
    fresh = tl.load(after + channel, mask=wanted & (column >= room), other=0.0)
    tl.store(out + place * size + channel, tl.where(is_old, stored, fresh), mask=inside)


def _states_in_windows(
    table: PairTable,
    outcome: StepOutcome,
    rows: torch.Tensor,  # [rows]
    windows: DraftWindows,
    width: int,
) -> torch.Tensor:  # [rows * width, aux_width]
    """Aux hidden states in every window, along the accepted paths; zeros for idle nodes."""
    new, old, path = outcome.aux_hidden_states, table.pairs, outcome.verify_result.path
    num_rows, size = path.shape[0], new.shape[1]
    out = new.new_empty(num_rows * width, size)
    block = min(_BLOCK, triton.next_power_of_2(size))
    kernel: Any = _states_kernel[(num_rows * width, triton.cdiv(size, block))]
    kernel(
        rows,
        windows.first,
        windows.num_real,
        old.aux_hidden_states,
        new,
        outcome.node_queries,
        path,
        out,
        old.tokens.shape[1],
        path.shape[1],
        outcome.node_queries.shape[1],
        width,
        size,
        BLOCK=block,
        PDL=overlap.is_on(rows),
        **overlap.options(rows),
    )
    return out


@triton.jit(do_not_specialize=_STORE_SIZES, do_not_specialize_on_alignment=_STORE_POINTERS)
def _store_kernel(
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
    node = column - tl.load(first + index)  # pairs before the window are not stored
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


def _store_newest(
    table: PairTable,
    outcome: StepOutcome,
    rows: torch.Tensor,  # [rows]
    windows: DraftWindows,
    in_windows: torch.Tensor,  # [rows * width, aux_width]
) -> None:
    """Store the newest pairs of every row; row 0 never has any."""
    num_rows, size = rows.shape[0], in_windows.shape[1]
    room = table.pairs.tokens.shape[1]
    block = min(_BLOCK, triton.next_power_of_2(size))
    kernel: Any = _store_kernel[(num_rows * room, triton.cdiv(size, block))]
    kernel(
        rows,
        outcome.verify_result.num_accepted,
        windows.first,
        windows.tokens,
        in_windows,
        table.pairs.tokens,
        table.pairs.aux_hidden_states,
        table.num,
        room,
        windows.tokens.shape[1],
        in_windows.shape[0] // max(num_rows, 1),
        size,
        BLOCK=block,
        PDL=overlap.is_on(rows),
        **overlap.options(rows),
    )


@triton.jit(do_not_specialize=_DRAFTS_SIZES, do_not_specialize_on_alignment=_DRAFTS_POINTERS)
def _drafts_kernel(
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


def write_drafts_triton(
    tokens: torch.Tensor,  # [rows]
    module: int,
    inputs: ModuleInputs,
    chunk: ChunkRows,  # of a step without chunks
    *,
    rows: torch.Tensor,  # [rows]
    drafts: torch.Tensor,  # [table_rows, modules] written
    queries: torch.Tensor,  # [rows * width] written
) -> None:
    """`write_drafts` without chunks, in one launch."""
    del chunk
    windows, (num_rows, width) = inputs.windows, inputs.is_idle.shape
    kernel: Any = _drafts_kernel[(num_rows,)]
    kernel(
        tokens,
        windows.tokens,
        windows.num_known,
        windows.first,
        rows,
        drafts,
        queries,
        module,
        windows.tokens.shape[1],
        drafts.shape[1],
        width,
        BLOCK=max(_LEAST, triton.next_power_of_2(width)),
        PDL=overlap.is_on(rows),
        num_warps=1,
        **overlap.options(rows),
    )
