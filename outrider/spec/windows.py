"""What draft modules run after a step: which rows, on which tokens, and what is kept of them.

Module k at row i reads token i + 1 + k, so its newest k rows stand on guesses. When those are
rejected the rows are stale, and running them again takes target features of earlier steps. Each row
therefore remembers its last `room` committed pairs (token i + 1, feature of i), room = modules - 1:

    column   0 .. room-1    room .. room+new-1    room+new ..
    pair     remembered     of this step          guesses, one more after every module

A window is a run of columns; module k at column c runs the token of column c + k. It ends with the
newest pair and is as wide as the step's shape says, which always covers what can be stale.
"""

from dataclasses import dataclass

import torch

from outrider.plan.plan import ChunkRows, StepPlan, chunk_offsets
from outrider.spec.drafter import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Committed pairs by row, newest last: those remembered, then those of a step."""

    tokens: torch.Tensor  # [rows, columns]
    features: torch.Tensor  # [rows, columns, width]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The last committed pairs of every row of the device tables. Row 0 never has any."""

    pairs: Pairs  # [table_rows, room] and [table_rows, room, width]
    num: torch.Tensor  # [table_rows] of them that are the present owner's

    def of(self, rows: torch.Tensor) -> tuple[Pairs, torch.Tensor]:
        """The pairs of some rows, and how many each has."""
        pairs = Pairs(
            tokens=self.pairs.tokens.index_select(0, rows),
            features=self.pairs.features.index_select(0, rows),
        )
        return pairs, self.num.index_select(0, rows)

    def keep(self, rows: torch.Tensor, pairs: Pairs, num_new: torch.Tensor) -> None:
        """Remember these pairs, of which `num_new` are new to a row."""
        room = self.pairs.tokens.shape[1]
        num = (self.num.index_select(0, rows) + num_new).clamp_max(room)
        self.pairs.tokens.index_copy_(0, rows, pairs.tokens)
        self.pairs.features.index_copy_(0, rows, pairs.features)
        self.num.index_copy_(0, rows, num * (rows > 0))


def make_memory(*, rows: int, room: int, width: int, like: torch.Tensor) -> Memory:
    """An empty one; features have the type and device of `like`."""
    return Memory(
        pairs=Pairs(
            tokens=like.new_zeros(rows, room, dtype=torch.int64),
            features=like.new_zeros(rows, room, width),
        ),
        num=like.new_zeros(rows, dtype=torch.int64),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """The window of every row of a step, decoding rows before chunks. `n` counts both."""

    tokens: torch.Tensor  # [n, columns] tokens after each pair's position; guesses join them
    num_known: torch.Tensor  # [n] columns whose token is committed
    first: torch.Tensor  # [n] column of the window's first node
    num_real: torch.Tensor  # [n] nodes that are pairs; those after them write to page 0

    def run_by(self, module: int, width: int) -> torch.Tensor:  # [n, width]
        """The tokens that a module runs in windows of this width."""
        node = torch.arange(width, device=self.first.device)
        column = self.first[:, None] + node + module
        return self.tokens.gather(1, column.clamp_max(self.tokens.shape[1] - 1))

    def guess(self, module: int, tokens: torch.Tensor) -> None:  # tokens [n]
        """What a module said about the token after the newest row; the next one runs it."""
        column = (self.num_known + module).clamp_max(self.tokens.shape[1] - 1)
        self.tokens.scatter_(1, column[:, None], tokens[:, None])


def decoded_pairs(plan: StepPlan, outcome: Outcome, old: Pairs) -> Pairs:
    """What decoding rows remember and then what they emitted, along the kept paths."""
    shape, verdict = plan.shape, outcome.verdict
    width = outcome.features.shape[1]
    nodes = outcome.features[: shape.num_uniform].view(shape.rows, shape.nodes, width)
    path = verdict.path[:, :, None].expand(-1, -1, width)
    return Pairs(
        tokens=torch.cat([old.tokens, verdict.emitted], dim=1),
        features=torch.cat([old.features, nodes.gather(1, path)], dim=1),
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
    features: torch.Tensor,  # [chunk.tokens, width]
    old: Pairs,
) -> Pairs:
    """The last pairs of chunks; a short chunk leaves some that were there before."""
    room = old.tokens.shape[1]
    column = torch.arange(room, device=following.device)
    offset = chunk.counts[:, None] - room + column  # [chunk.rows, room] in the chunk
    begin = chunk.counts.cumsum(0) - chunk.counts
    index = (begin[:, None] + offset).clamp(0, following.shape[0] - 1)
    before = (offset + room).clamp_max(room - 1)
    wide = before[:, :, None].expand(-1, -1, features.shape[1])
    is_new = offset >= 0
    return Pairs(
        tokens=torch.where(is_new, following[index], old.tokens.gather(1, before)),
        features=torch.where(is_new[:, :, None], features[index], old.features.gather(1, wide)),
    )


def newest_of_decodes(pairs: Pairs, kept: torch.Tensor, room: int) -> Pairs:
    """The last pairs of decoding rows, which have emitted `kept` + 1 tokens each."""
    column = kept[:, None] + 1 + torch.arange(room, device=kept.device)  # [rows, room]
    wide = column[:, :, None].expand(-1, -1, pairs.features.shape[2])
    return Pairs(tokens=pairs.tokens.gather(1, column), features=pairs.features.gather(1, wide))


def run_in_chunks(
    chunk: ChunkRows,
    following: torch.Tensor,  # [chunk.tokens]
    guesses: torch.Tensor,  # [chunk.rows, modules]
    module: int,
) -> torch.Tensor:  # [chunk.tokens]
    """The tokens that a module runs in chunks: the prompt's as far as they are known, then guesses.

    A chunk that is not the last of its prompt ends on guesses too; the next one's window mends it.
    """
    if not module:
        return following
    ahead = chunk_offsets(chunk) + module - chunk.counts[chunk.owners]  # [chunk.tokens]
    index = torch.arange(following.shape[0], device=following.device) + module
    known = following[index.clamp_max(following.shape[0] - 1)]
    return torch.where(ahead < 0, known, guesses[chunk.owners, ahead.clamp_min(0)])
