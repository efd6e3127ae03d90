"""What MTP modules run after a step: which rows, on which tokens and hidden states.

Module k at position i reads token i + 1 + k, so its newest k positions depend on drafts. When those
drafts are rejected, the draft KV there is stale. Running these positions again needs aux hidden
states of earlier steps. So each row stores its last `room` committed pairs (token i + 1, aux hidden
state of i), room = modules - 1:

    column   0 .. room-1    room .. room+new-1    room+new ..
    pair     stored         of this step          drafts, one more after every module

A draft window is a range of columns that ends with the newest pair. Module k at column c runs the
token of column c + k.

Why `room` = modules - 1 pairs are enough: a step that emits `new` tokens has accepted new - 1
drafts. Draft KV of the last module depends on `modules` tokens ahead, so its last modules - new
positions before this step were computed from drafts that were rejected. These positions are stale
and run again. There are at most modules - 1 of them, since new is at least 1. Stale and new
positions together are max(modules, new) columns, so a window has max(modules, most_emitted) nodes.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional

from outrider.ops.tree.chain import chain
from outrider.ops.tree.draft_tree import DraftTree, StepOutcome
from outrider.ops.tree.mtp_pairs import (
    Pairs,
    PairTable,
    module_tokens_in_chunks,
    newest_of_chunks,
    newest_of_decodes,
    pairs_of_decodes,
    tokens_of_chunks,
)
from outrider.ops.tree.plan_rows import ChunkRows, DecodeRows, next_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftWindows:
    """The window of every row of a step, decode rows before chunks. `n` counts both."""

    tokens: torch.Tensor  # [n, columns] the token of each pair; drafts are written after them
    num_known: torch.Tensor  # [n] columns whose token is committed
    first: torch.Tensor  # [n] column of the window's first node
    num_real: torch.Tensor  # [n] nodes that are pairs; the nodes after them are idle
    newest: torch.Tensor  # [n] query token of the newest pair: a node, or the end of a chunk
    positions: torch.Tensor  # [n] absolute position of the first draft

    def tokens_for(self, module: int, width: int) -> torch.Tensor:  # [n, width]
        """The tokens that a module runs in windows of this width."""
        node = torch.arange(width, device=self.first.device)
        column = self.first[:, None] + node + module
        return self.tokens.gather(1, column.clamp_max(self.tokens.shape[1] - 1))

    def write_draft(self, module: int, tokens: torch.Tensor) -> None:  # tokens [n]
        """Store a module's draft of the token after the newest pair; the next module runs it."""
        column = (self.num_known + module).clamp_max(self.tokens.shape[1] - 1)
        self.tokens.scatter_(1, column[:, None], tokens[:, None])


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleInputs:
    """What the modules read in the catch-up after a step."""

    windows: DraftWindows
    nodes: DraftTree  # [n, width] for the first module; idle nodes attend to the first node alone
    is_idle: torch.Tensor  # [n, width] bool: these nodes write to page 0
    aux_hidden_states: torch.Tensor  # [num_query, aux_width] of the catch-up; zeros for idle nodes
    following: torch.Tensor  # [chunk.tokens] the token after each chunk token


def open_windows(
    table: PairTable,
    outcome: StepOutcome,
    decode: DecodeRows,
    chunk: ChunkRows,
    *,
    catch_up: DecodeRows,  # [n] rows and lengths are written: each window's row and start
    width: int,  # nodes of a window
    num_modules: int,
) -> ModuleInputs:
    """The windows over what a step decided. Stores the step's newest pairs in the table."""
    if outcome.aux_hidden_states.is_cuda and not chunk.rows.shape[0]:
        from outrider.ops.tree.mtp_window_triton import open_windows_triton

        return open_windows_triton(
            table, outcome, decode, chunk, catch_up=catch_up, width=width, num_modules=num_modules
        )
    return open_windows_reference(
        table, outcome, decode, chunk, catch_up=catch_up, width=width, num_modules=num_modules
    )


def open_windows_reference(
    table: PairTable,
    outcome: StepOutcome,
    decode: DecodeRows,
    chunk: ChunkRows,
    *,
    catch_up: DecodeRows,  # written
    width: int,
    num_modules: int,
) -> ModuleInputs:
    """The same in plain torch, with chunks or without."""
    torch.cat([decode.rows, chunk.rows], out=catch_up.rows)
    old, num_old = table.read(catch_up.rows)
    old_of_decodes, old_of_chunks = old.split(decode.rows.shape[0])
    following = next_tokens(chunk, outcome.chunk_choice)
    num_decode_query = outcome.aux_hidden_states.shape[0] - chunk.tokens.shape[0]
    pairs = pairs_of_decodes(outcome, old_of_decodes)
    columns = outcome.verify_result.emitted.shape[1] + num_modules + 1  # one column is never read
    chunk_tokens = tokens_of_chunks(chunk, following, old_of_chunks, columns)
    windows = _place_windows(
        outcome,
        decode,
        chunk,
        num_old=num_old,
        room=old.tokens.shape[1],
        catch_up=catch_up,
        width=width,
        tokens=torch.cat([functional.pad(pairs.tokens, (0, num_modules + 1)), chunk_tokens]),
    )
    of_chunks = outcome.aux_hidden_states[num_decode_query:]  # [chunk.tokens, aux_width]
    room = old.tokens.shape[1]
    newest = _joined(
        newest_of_decodes(pairs, outcome.verify_result.num_accepted, room),
        newest_of_chunks(chunk, following, of_chunks, old_of_chunks),
    )
    table.write(catch_up.rows, newest, windows.num_known - room)
    is_idle = torch.arange(width, device=of_chunks.device) >= windows.num_real[:, None]
    in_windows = _states_in_windows(pairs, old_of_chunks, windows, width)
    # An idle node may have read a former request's hidden state, which can be NaN.
    in_windows = in_windows.masked_fill(is_idle.view(-1, 1), 0)
    return ModuleInputs(
        windows=windows,
        nodes=_nodes(windows.tokens_for(0, width), is_idle),
        is_idle=is_idle,
        aux_hidden_states=torch.cat([in_windows, of_chunks]),
        following=following,
    )


def write_drafts(
    tokens: torch.Tensor,  # [n] that a module drafted
    module: int,
    inputs: ModuleInputs,
    chunk: ChunkRows,
    *,
    rows: torch.Tensor,  # [n]
    drafts: torch.Tensor,  # [table_rows, modules] written
    queries: torch.Tensor,  # [num_query] written: the tokens that the next module runs
) -> None:
    """Store a module's drafts, and write the tokens that the next module runs.

    Nothing else of the plan changes from one module to the next.
    """
    if tokens.is_cuda and not chunk.rows.shape[0]:
        from outrider.ops.tree.mtp_window_triton import write_drafts_triton as write
    else:
        write = write_drafts_reference
    write(tokens, module, inputs, chunk, rows=rows, drafts=drafts, queries=queries)


def write_drafts_reference(
    tokens: torch.Tensor,  # [n]
    module: int,
    inputs: ModuleInputs,
    chunk: ChunkRows,
    *,
    rows: torch.Tensor,  # [n]
    drafts: torch.Tensor,  # [table_rows, modules] written
    queries: torch.Tensor,  # [num_query] written
) -> None:
    """The same in plain torch, with chunks or without."""
    inputs.windows.write_draft(module, tokens)
    drafts[:, module].index_copy_(0, rows, tokens)
    of_chunks = drafts.index_select(0, chunk.rows)
    in_chunks = module_tokens_in_chunks(chunk, inputs.following, of_chunks, module + 1)
    in_windows = inputs.windows.tokens_for(module + 1, inputs.is_idle.shape[1]).flatten()
    torch.cat([in_windows, in_chunks], out=queries)


def _place_windows(
    outcome: StepOutcome,
    decode: DecodeRows,
    chunk: ChunkRows,
    *,
    num_old: torch.Tensor,  # [n]
    room: int,
    catch_up: DecodeRows,  # lengths are written
    width: int,
    tokens: torch.Tensor,  # [n, columns]
) -> DraftWindows:
    """Where the windows lie; writes the position at which each starts."""
    num_rows = decode.rows.shape[0]
    num_new = torch.cat([outcome.verify_result.num_accepted + 1, chunk.counts])
    # The new pairs of a chunk row run as a chunk: its window ends before them.
    end = room + torch.cat([num_new[:num_rows], torch.zeros_like(chunk.counts)])
    first = torch.maximum(room - num_old, end - width)
    lengths = torch.cat([decode.lengths, chunk.starts])
    torch.add(lengths - room, first, out=catch_up.lengths)
    node = torch.arange(num_rows, device=end.device) * width + (end - first - 1)[:num_rows]
    ends = tokens.shape[0] * width + (chunk.counts.cumsum(0) - 1).clamp_min(0)
    return DraftWindows(
        tokens=tokens,
        num_known=room + num_new,
        first=first,
        num_real=end - first,
        newest=torch.cat([node, ends]),
        positions=lengths + num_new + 1,
    )


def _joined(first: Pairs, second: Pairs) -> Pairs:
    return Pairs(
        tokens=torch.cat([first.tokens, second.tokens]),
        aux_hidden_states=torch.cat([first.aux_hidden_states, second.aux_hidden_states]),
    )


def _nodes(tokens: torch.Tensor, is_idle: torch.Tensor) -> DraftTree:  # [n, width] both
    """Chains. Idle nodes attend to the first node alone: their own path may be past all pages."""
    nodes = chain(tokens)
    return DraftTree(
        tokens=tokens,
        parents=nodes.parents,
        depths=nodes.depths,
        ancestors=nodes.ancestors.masked_fill(is_idle, 1),
    )


def _states_in_windows(
    pairs: Pairs, of_chunks: Pairs, windows: DraftWindows, width: int
) -> torch.Tensor:  # [n * width, aux_width]
    """The aux hidden states of all windows, flat."""
    column = windows.first[:, None] + torch.arange(width, device=windows.first.device)
    num_decodes = pairs.tokens.shape[0]
    return torch.cat(
        [
            _columns_of(pairs.aux_hidden_states, column[:num_decodes]),
            _columns_of(of_chunks.aux_hidden_states, column[num_decodes:]),
        ]
    )


def _columns_of(states: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """Some columns, flat: [rows, columns, aux_width], [rows, n] -> [rows * n, aux_width]."""
    index = column.clamp_max(states.shape[1] - 1)[:, :, None]
    return states.gather(1, index.expand(-1, -1, states.shape[2])).flatten(0, 1)
