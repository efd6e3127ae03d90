"""What draft modules run after a step: which rows, on which tokens, and what is kept of them.

Module k at row i reads token i + 1 + k, so its newest k rows stand on guesses. When those are
rejected the rows are stale, and running them again takes target features of earlier steps. Each row
therefore remembers its last `room` committed pairs (token i + 1, feature of i), room = modules - 1:

    column   0 .. room-1    room .. room+new-1    room+new ..
    pair     remembered     of this step          guesses, one more after every module

A window is a run of columns; module k at column c runs the token of column c + k. It ends with the
newest pair. A step that brings `new` pairs has confirmed new - 1 guesses, so the last module, which
stands on most of them, has modules - new stale rows. That is modules - 1 at most, hence the room;
and stale and new rows together are as many as there are modules, or as the new ones if those are
more, hence windows of max(modules, most_emitted) nodes.
"""

from dataclasses import dataclass

import torch

from outrider.spec.drafter import StepOutcome, chain
from outrider.spec.model_drafter import next_tokens
from outrider.step.draft_tree import DraftTree
from outrider.step.plan import ChunkRows, StepPlan, chunk_offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Committed pairs by row, newest last: those remembered, then those of a step."""

    tokens: torch.Tensor  # [rows, columns]
    aux_hidden_states: torch.Tensor  # [rows, columns, width]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The last committed pairs of every row of the device tables. Row 0 never has any."""

    pairs: Pairs  # [table_rows, room] and [table_rows, room, width]
    num: torch.Tensor  # [table_rows] of them that are the present owner's

    def of(self, rows: torch.Tensor) -> tuple[Pairs, torch.Tensor]:
        """The pairs of some rows, and how many each has."""
        pairs = Pairs(
            tokens=self.pairs.tokens.index_select(0, rows),
            aux_hidden_states=self.pairs.aux_hidden_states.index_select(0, rows),
        )
        return pairs, self.num.index_select(0, rows)

    def keep(self, rows: torch.Tensor, pairs: Pairs, num_new: torch.Tensor) -> None:
        """Remember these pairs, of which `num_new` are new to a row."""
        room = self.pairs.tokens.shape[1]
        num = (self.num.index_select(0, rows) + num_new).clamp_max(room)
        self.pairs.tokens.index_copy_(0, rows, pairs.tokens)
        self.pairs.aux_hidden_states.index_copy_(0, rows, pairs.aux_hidden_states)
        self.num.index_copy_(0, rows, num * (rows > 0))

    def forget(self) -> None:
        """Make all rows what they were at first."""
        self.pairs.aux_hidden_states.zero_()
        self.num.zero_()


def make_memory(*, rows: int, room: int, width: int, like: torch.Tensor) -> Memory:
    """An empty one; features have the type and device of `like`."""
    return Memory(
        pairs=Pairs(
            tokens=like.new_zeros(rows, room, dtype=torch.int64),
            aux_hidden_states=like.new_zeros(rows, room, width),
        ),
        num=like.new_zeros(rows, dtype=torch.int64),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """The window of every row of a step, decoding rows before chunks. `n` counts both."""

    tokens: torch.Tensor  # [n, columns] tokens after each pair's position; guesses join them
    num_known: torch.Tensor  # [n] columns whose token is committed
    first: torch.Tensor  # [n] column of the window's first node
    num_real: torch.Tensor  # [n] nodes that are pairs; those after them are idle
    tips: torch.Tensor  # [n] the newest row among the query tokens: a node, or a chunk's end
    positions: torch.Tensor  # [n] absolute position of the first draft

    def run_by(self, module: int, width: int) -> torch.Tensor:  # [n, width]
        """The tokens that a module runs in windows of this width."""
        node = torch.arange(width, device=self.first.device)
        column = self.first[:, None] + node + module
        return self.tokens.gather(1, column.clamp_max(self.tokens.shape[1] - 1))

    def guess(self, module: int, tokens: torch.Tensor) -> None:  # tokens [n]
        """What a module said about the token after the newest row; the next one runs it."""
        column = (self.num_known + module).clamp_max(self.tokens.shape[1] - 1)
        self.tokens.scatter_(1, column[:, None], tokens[:, None])


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a step brought, as modules read it."""

    windows: Windows
    nodes: DraftTree  # [n, width] what the first module runs; idle ones see the first node alone
    is_idle: torch.Tensor  # [n, width] bool: these write to page 0
    aux_hidden_states: (
        torch.Tensor
    )  # [num_query, width] of the catch-up's query tokens; idle ones' are 0
    following: torch.Tensor  # [chunk.tokens] the token after each chunk token


def see(
    memory: Memory, plan: StepPlan, outcome: StepOutcome, catch_up: StepPlan, num_modules: int
) -> Seen:
    """Windows over what a step decided; remembers its newest pairs.

    Writes which rows the catch-up runs and where their windows start.
    """
    if outcome.aux_hidden_states.is_cuda and not plan.shape.chunk.rows:
        return _see_on_gpu(memory, plan, outcome, catch_up, num_modules)
    torch.cat([plan.decode.rows, plan.chunk.rows], out=catch_up.decode.rows)
    old, num_old = memory.of(catch_up.decode.rows)
    decodes, chunks = _split(old, plan.shape.rows)
    following = next_tokens(plan.chunk, outcome.chunk_choice)
    emitted = decoded_pairs(plan, outcome, decodes)
    windows = _windows(plan, outcome, catch_up, (emitted, chunks, following), num_old, num_modules)
    flat = outcome.aux_hidden_states[plan.shape.num_decode_query :]  # [chunk.tokens, width]
    newest = _joined(
        newest_of_decodes(emitted, outcome.verify_result.num_accepted, old.tokens.shape[1]),
        newest_of_chunks(plan.chunk, following, flat, chunks),
    )
    memory.keep(catch_up.decode.rows, newest, windows.num_known - old.tokens.shape[1])
    width = catch_up.shape.nodes
    is_idle = torch.arange(width, device=flat.device) >= windows.num_real[:, None]
    in_windows = _in_windows(emitted, chunks, windows, width)
    return Seen(
        windows=windows,
        nodes=_nodes(windows.run_by(0, width), is_idle),
        is_idle=is_idle,
        # What lies in idle places may be a former owner's, who may have left no numbers.
        aux_hidden_states=torch.cat([in_windows.masked_fill(is_idle.view(-1, 1), 0), flat]),
        following=following,
    )


def take(
    tokens: torch.Tensor,  # [n] that a module drafted
    module: int,
    seen: Seen,
    catch_up: StepPlan,
    drafts: torch.Tensor,  # [table_rows, modules], written
) -> None:
    """Note a module's drafts, and put in place what the next module runs.

    Nothing else of the plan changes from one module to the next.
    """
    windows, rows, shape = seen.windows, catch_up.decode.rows, catch_up.shape
    if tokens.is_cuda and not shape.chunk.rows:
        from outrider.ops.tree.mtp_window_triton import take as launch

        facts = windows.num_known, windows.first
        launch(tokens, windows.tokens, facts, rows, drafts, catch_up.queries.tokens, module)
        return
    windows.guess(module, tokens)
    drafts[:, module].index_copy_(0, rows, tokens)
    guesses = drafts.index_select(0, catch_up.chunk.rows)
    in_chunks = run_in_chunks(catch_up.chunk, seen.following, guesses, module + 1)
    in_windows = windows.run_by(module + 1, shape.nodes).flatten()
    torch.cat([in_windows, in_chunks], out=catch_up.queries.tokens)


def _see_on_gpu(
    memory: Memory, plan: StepPlan, outcome: StepOutcome, catch_up: StepPlan, num_modules: int
) -> Seen:
    """The same where there are no chunks, in three launches."""
    from outrider.ops.tree import mtp_window_triton as kernels  # a CPU installation has no Triton

    decode, verify_result, width = plan.decode, outcome.verify_result, catch_up.shape.nodes
    opened = kernels.open_windows(
        (decode.rows, decode.lengths),
        (verify_result.num_accepted, verify_result.emitted),
        (memory.pairs.tokens, memory.num),
        out=(catch_up.decode.rows, catch_up.decode.lengths),
        width=width,
        num_modules=num_modules,
    )
    windows = Windows(
        tokens=opened.tokens,
        num_known=opened.num_known,
        first=opened.first,
        num_real=opened.num_real,
        tips=opened.tips,
        positions=opened.positions,
    )
    aux_hidden_states = kernels.window_hidden_states(
        decode.rows,
        (windows.first, windows.num_real),
        memory.pairs.aux_hidden_states,
        outcome.aux_hidden_states.view(
            plan.shape.rows, plan.shape.nodes, outcome.aux_hidden_states.shape[1]
        ),
        verify_result.path,
        width,
    )
    kernels.remember(
        (decode.rows, verify_result.num_accepted, windows.first),
        windows.tokens,
        aux_hidden_states.view(-1, width, aux_hidden_states.shape[1]),
        (memory.pairs.tokens, memory.pairs.aux_hidden_states, memory.num),
    )
    nodes = DraftTree(
        tokens=opened.node_tokens,
        parents=opened.depths,
        depths=opened.depths,
        ancestors=opened.ancestors,
    )
    return Seen(
        windows=windows,
        nodes=nodes,
        is_idle=opened.is_idle,
        aux_hidden_states=aux_hidden_states,
        following=plan.chunk.tokens,
    )


def _windows(
    plan: StepPlan,
    outcome: StepOutcome,
    catch_up: StepPlan,
    brought: tuple[Pairs, Pairs, torch.Tensor],  # of decodes, what chunks remember, their tokens
    num_old: torch.Tensor,  # [n]
    num_modules: int,
) -> Windows:
    """Where the windows lie, and their tokens; writes where they start."""
    (emitted, old, following), chunk = brought, plan.chunk
    room, num_rows, width = old.tokens.shape[1], plan.shape.rows, catch_up.shape.nodes
    num_new = torch.cat([outcome.verify_result.num_accepted + 1, chunk.counts])
    spare = num_modules + 1  # guesses, and one column that nobody reads
    columns = emitted.tokens.shape[1] - room + spare
    # What a chunk brings is run as a chunk: its window ends before it.
    end = room + torch.cat([num_new[:num_rows], torch.zeros_like(chunk.counts)])
    first = torch.maximum(room - num_old, end - width)
    lengths = torch.cat([plan.decode.lengths, chunk.starts])
    torch.add(lengths - room, first, out=catch_up.decode.lengths)
    node = torch.arange(num_rows, device=end.device) * width + (end - first - 1)[:num_rows]
    ends = catch_up.shape.num_decode_query + (chunk.counts.cumsum(0) - 1).clamp_min(0)
    return Windows(
        tokens=torch.cat(
            [
                torch.nn.functional.pad(emitted.tokens, (0, spare)),
                chunk_pairs(chunk, following, old, columns),
            ]
        ),
        num_known=room + num_new,
        first=first,
        num_real=end - first,
        tips=torch.cat([node, ends]),
        positions=lengths + num_new + 1,
    )


def _nodes(tokens: torch.Tensor, is_idle: torch.Tensor) -> DraftTree:  # [n, width] both
    """Chains of which idle nodes see the first alone: what they would see may be past all pages."""
    nodes = chain(tokens)
    return DraftTree(
        tokens=tokens,
        parents=nodes.parents,
        depths=nodes.depths,
        ancestors=nodes.ancestors.masked_fill(is_idle, 1),
    )


def _in_windows(emitted: Pairs, chunks: Pairs, windows: Windows, width: int) -> torch.Tensor:
    """The features of all windows, flat: [n * width, width of a feature]."""
    column = windows.first[:, None] + torch.arange(width, device=windows.first.device)
    cut = emitted.tokens.shape[0]
    of_decodes = _taken(emitted.aux_hidden_states, column[:cut])
    return torch.cat([of_decodes, _taken(chunks.aux_hidden_states, column[cut:])])


def decoded_pairs(plan: StepPlan, outcome: StepOutcome, old: Pairs) -> Pairs:
    """What decoding rows remember and then what they emitted, along the kept paths."""
    shape, verify_result = plan.shape, outcome.verify_result
    width = outcome.aux_hidden_states.shape[1]
    nodes = outcome.aux_hidden_states[: shape.num_decode_query].view(shape.rows, shape.nodes, width)
    path = verify_result.path[:, :, None].expand(-1, -1, width)
    return Pairs(
        tokens=torch.cat([old.tokens, verify_result.emitted], dim=1),
        aux_hidden_states=torch.cat([old.aux_hidden_states, nodes.gather(1, path)], dim=1),
    )


def chunk_pairs(
    chunk: ChunkRows,
    following: torch.Tensor,  # [chunk.tokens] the token after each chunk token
    old: Pairs,
    columns: int,
) -> torch.Tensor:  # [chunk.rows, room + columns]
    """What chunks remember and then their first tokens; past the end of a chunk any token."""
    begin = chunk.counts.cumsum(0) - chunk.counts  # [chunk.rows]
    offset = torch.arange(columns, device=begin.device)
    index = (begin[:, None] + offset).clamp_max(following.shape[0] - 1)
    return torch.cat([old.tokens, following[index]], dim=1)


def newest_of_chunks(
    chunk: ChunkRows,
    following: torch.Tensor,  # [chunk.tokens]
    aux_hidden_states: torch.Tensor,  # [chunk.tokens, width]
    old: Pairs,
) -> Pairs:
    """The last pairs of chunks; a short chunk leaves some that were there before."""
    room = old.tokens.shape[1]
    column = torch.arange(room, device=following.device)
    offset = chunk.counts[:, None] - room + column  # [chunk.rows, room] in the chunk
    begin = chunk.counts.cumsum(0) - chunk.counts
    index = (begin[:, None] + offset).clamp(0, following.shape[0] - 1)
    before = (offset + room).clamp_max(room - 1)
    wide = before[:, :, None].expand(-1, -1, aux_hidden_states.shape[1])
    is_new = offset >= 0
    return Pairs(
        tokens=torch.where(is_new, following[index], old.tokens.gather(1, before)),
        aux_hidden_states=torch.where(
            is_new[:, :, None], aux_hidden_states[index], old.aux_hidden_states.gather(1, wide)
        ),
    )


def newest_of_decodes(pairs: Pairs, num_accepted: torch.Tensor, room: int) -> Pairs:
    """The last pairs of decoding rows, which have emitted `kept` + 1 tokens each."""
    column = (
        num_accepted[:, None] + 1 + torch.arange(room, device=num_accepted.device)
    )  # [rows, room]
    wide = column[:, :, None].expand(-1, -1, pairs.aux_hidden_states.shape[2])
    return Pairs(
        tokens=pairs.tokens.gather(1, column),
        aux_hidden_states=pairs.aux_hidden_states.gather(1, wide),
    )


def run_in_chunks(
    chunk: ChunkRows,
    following: torch.Tensor,  # [chunk.tokens]
    guesses: torch.Tensor,  # [chunk.rows, modules]
    module: int,
) -> torch.Tensor:  # [chunk.tokens]
    """The tokens that a module runs in chunks: the prompt's as far as they are known, then guesses.

    A chunk that is not the last of its prompt ends on guesses too; the next one's window mends it.
    """
    ahead = chunk_offsets(chunk) + module - chunk.counts[chunk.owners]  # [chunk.tokens]
    index = torch.arange(following.shape[0], device=following.device) + module
    known = following[index.clamp_max(following.shape[0] - 1)]
    return torch.where(ahead < 0, known, guesses[chunk.owners, ahead.clamp_min(0)])


def _split(pairs: Pairs, num_first: int) -> tuple[Pairs, Pairs]:
    tokens, aux_hidden_states = pairs.tokens, pairs.aux_hidden_states
    return (
        Pairs(tokens=tokens[:num_first], aux_hidden_states=aux_hidden_states[:num_first]),
        Pairs(tokens=tokens[num_first:], aux_hidden_states=aux_hidden_states[num_first:]),
    )


def _joined(first: Pairs, second: Pairs) -> Pairs:
    return Pairs(
        tokens=torch.cat([first.tokens, second.tokens]),
        aux_hidden_states=torch.cat([first.aux_hidden_states, second.aux_hidden_states]),
    )


def _taken(aux_hidden_states: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """Features of these columns, flat: [rows, columns, width], [rows, n] -> [rows * n, width]."""
    index = column.clamp_max(aux_hidden_states.shape[1] - 1)[:, :, None]
    return aux_hidden_states.gather(1, index.expand(-1, -1, aux_hidden_states.shape[2])).flatten(
        0, 1
    )
