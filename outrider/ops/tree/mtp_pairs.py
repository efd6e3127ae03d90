"""Committed pairs that MTP modules run again: the last ones of every row, and those of a step.

A pair is (token i + 1, aux hidden state of i): what the first module reads at position i.
"""

from dataclasses import dataclass

import torch

from outrider.ops.tree.draft_tree import StepOutcome
from outrider.ops.tree.plan_rows import ChunkRows, chunk_offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Committed pairs by row, newest last."""

    tokens: torch.Tensor  # [rows, columns]
    aux_hidden_states: torch.Tensor  # [rows, columns, aux_width]

    def split(self, num_first: int) -> tuple["Pairs", "Pairs"]:
        """The pairs of the first rows, and those of the others."""
        tokens, states = self.tokens, self.aux_hidden_states
        return (
            Pairs(tokens=tokens[:num_first], aux_hidden_states=states[:num_first]),
            Pairs(tokens=tokens[num_first:], aux_hidden_states=states[num_first:]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTable:
    """The last `room` committed pairs of every row of the device tables. Row 0 never has any."""

    pairs: Pairs  # [table_rows, room] and [table_rows, room, aux_width]
    num: torch.Tensor  # [table_rows] of them that belong to the row's present request

    def read(self, rows: torch.Tensor) -> tuple[Pairs, torch.Tensor]:  # rows [n]; [n]
        """The pairs of some rows, and how many each has."""
        pairs = Pairs(
            tokens=self.pairs.tokens.index_select(0, rows),
            aux_hidden_states=self.pairs.aux_hidden_states.index_select(0, rows),
        )
        return pairs, self.num.index_select(0, rows)

    def write(self, rows: torch.Tensor, pairs: Pairs, num_new: torch.Tensor) -> None:
        """Store the newest pairs of some rows, of which `num_new` [n] are new."""
        room = self.pairs.tokens.shape[1]
        num = (self.num.index_select(0, rows) + num_new).clamp_max(room)
        self.pairs.tokens.index_copy_(0, rows, pairs.tokens)
        self.pairs.aux_hidden_states.index_copy_(0, rows, pairs.aux_hidden_states)
        self.num.index_copy_(0, rows, num * (rows > 0))

    def clear(self) -> None:
        """Forget all pairs. Hidden states become zeros: they may be NaN after a failed step."""
        self.pairs.aux_hidden_states.zero_()
        self.num.zero_()


def make_pair_table(*, rows: int, room: int, width: int, like: torch.Tensor) -> PairTable:
    """An empty table; hidden states have the type and device of `like`."""
    return PairTable(
        pairs=Pairs(
            tokens=like.new_zeros(rows, room, dtype=torch.int64),
            aux_hidden_states=like.new_zeros(rows, room, width),
        ),
        num=like.new_zeros(rows, dtype=torch.int64),
    )


def pairs_of_decodes(outcome: StepOutcome, old: Pairs) -> Pairs:  # [rows, room + most_emitted]
    """The stored pairs of decode rows, then the new ones along the accepted paths."""
    path, states = outcome.verify_result.path, outcome.aux_hidden_states
    queries = outcome.node_queries.gather(1, path).flatten()
    new = states.index_select(0, queries).view(*path.shape, states.shape[1])
    return Pairs(
        tokens=torch.cat([old.tokens, outcome.verify_result.emitted], dim=1),
        aux_hidden_states=torch.cat([old.aux_hidden_states, new], dim=1),
    )


def tokens_of_chunks(
    chunk: ChunkRows,
    following: torch.Tensor,  # [chunk.tokens] the token after each chunk token
    old: Pairs,
    columns: int,
) -> torch.Tensor:  # [chunk.rows, room + columns]
    """The stored tokens of chunk rows, then their first new ones; past a chunk's end any token."""
    begin = chunk.counts.cumsum(0) - chunk.counts  # [chunk.rows]
    offset = torch.arange(columns, device=begin.device)
    index = (begin[:, None] + offset).clamp_max(following.shape[0] - 1)
    return torch.cat([old.tokens, following[index]], dim=1)


def newest_of_chunks(
    chunk: ChunkRows,
    following: torch.Tensor,  # [chunk.tokens]
    aux_hidden_states: torch.Tensor,  # [chunk.tokens, aux_width]
    old: Pairs,
) -> Pairs:  # [chunk.rows, room]
    """The last pairs of chunk rows; a short chunk leaves some that were stored before."""
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
    """The last pairs of decode rows, each of which emitted num_accepted + 1 tokens."""
    first = num_accepted[:, None] + 1
    column = first + torch.arange(room, device=num_accepted.device)  # [rows, room]
    wide = column[:, :, None].expand(-1, -1, pairs.aux_hidden_states.shape[2])
    return Pairs(
        tokens=pairs.tokens.gather(1, column),
        aux_hidden_states=pairs.aux_hidden_states.gather(1, wide),
    )


def module_tokens_in_chunks(
    chunk: ChunkRows,
    following: torch.Tensor,  # [chunk.tokens]
    drafts: torch.Tensor,  # [chunk.rows, modules]
    module: int,
) -> torch.Tensor:  # [chunk.tokens]
    """The tokens that a module runs in chunks: of the prompt as far as they are known, then drafts.

    A chunk in the middle of a prompt ends on drafts too; the next chunk's window runs those again.
    """
    ahead = chunk_offsets(chunk) + module - chunk.counts[chunk.owners]  # [chunk.tokens]
    index = torch.arange(following.shape[0], device=following.device) + module
    known = following[index.clamp_max(following.shape[0] - 1)]
    return torch.where(ahead < 0, known, drafts[chunk.owners, ahead.clamp_min(0)])
