"""Hidden states of a draft model between its runs: at the start of a round, from level to level,
and around the catch-up with what the target decided."""

import torch

from outrider.ops.tree.candidates import Frontier
from outrider.ops.tree.draft_tree import DraftTree, StepOutcome
from outrider.ops.tree.plan_rows import ChunkRows, DecodeRows, next_tokens


def start_round(
    decode: DecodeRows,
    *,
    last_tokens: torch.Tensor,  # [table_rows]
    hidden_states: torch.Tensor,  # [table_rows, width] of each row, as its catch-up left it
    first_lengths: torch.Tensor,  # [rows] written: where the KV of the last token is
    level_lengths: torch.Tensor,  # [rows] written: where the round's own KV begins
    lead: int,
) -> tuple[Frontier, torch.Tensor]:  # and hidden states [rows, 1, width]
    """Node 0 of every row as the frontier, and its hidden state. Its KV is cached."""
    if hidden_states.is_cuda:
        from outrider.ops.tree.draft_hidden_states_triton import start_round_triton as start
    else:
        start = start_round_reference
    return start(
        decode,
        last_tokens=last_tokens,
        hidden_states=hidden_states,
        first_lengths=first_lengths,
        level_lengths=level_lengths,
        lead=lead,
    )


def start_round_reference(
    decode: DecodeRows,
    *,
    last_tokens: torch.Tensor,  # [table_rows]
    hidden_states: torch.Tensor,  # [table_rows, width]
    first_lengths: torch.Tensor,  # [rows] written
    level_lengths: torch.Tensor,  # [rows] written
    lead: int,
) -> tuple[Frontier, torch.Tensor]:  # and hidden states [rows, 1, width]
    """The same in plain torch."""
    rows, lengths = decode.rows, decode.lengths
    torch.add(lengths, lead, out=level_lengths)
    torch.sub(level_lengths, 1, out=first_lengths).clamp_min_(0)  # padding has no tokens
    tips = root_frontier(decode, last_tokens.index_select(0, rows))
    return tips, hidden_states.index_select(0, rows)[:, None]


def root_frontier(decode: DecodeRows, root: torch.Tensor) -> Frontier:  # root [rows]
    """Node 0 of every row, from which its tree grows."""
    zeros = root.new_zeros(root.shape[0], 1)
    return Frontier(
        scores=zeros.float(),
        numbers=zeros - 1,
        parent_tips=zeros,
        positions=decode.lengths[:, None] + 1,
        nodes=DraftTree(tokens=root[:, None], parents=zeros, depths=zeros, ancestors=zeros),
    )


def parent_hidden_states(
    hidden_states: torch.Tensor,  # [rows, branches, width]
    parent_tips: torch.Tensor,  # [rows, topk]
) -> torch.Tensor:  # [rows, topk, width]
    """The hidden state of each tip's parent."""
    if hidden_states.is_cuda:
        from outrider.ops.tree.draft_hidden_states_triton import parent_hidden_states_triton

        return parent_hidden_states_triton(hidden_states, parent_tips)
    return parent_hidden_states_reference(hidden_states, parent_tips)


def parent_hidden_states_reference(
    hidden_states: torch.Tensor,  # [rows, branches, width]
    parent_tips: torch.Tensor,  # [rows, topk]
) -> torch.Tensor:  # [rows, topk, width]
    """The same in plain torch."""
    index = parent_tips[:, :, None].expand(-1, -1, hidden_states.shape[2])
    return hidden_states.gather(1, index)


def gather_accepted(
    outcome: StepOutcome,
    decode: DecodeRows,
    chunk: ChunkRows,
    *,
    new_lengths: torch.Tensor,  # [rows] written: where the catch-up of each row starts
    new_tokens: torch.Tensor,  # [chunk.tokens] written: what the catch-up runs in chunks
    lead: int,
    lookahead: int,  # 0 or 1
) -> torch.Tensor:  # [rows * most_emitted + chunk.tokens, aux_width]
    """Aux hidden states along the accepted paths, then those of the chunks.

    At each position a head (lookahead 1) runs the token after it; other models the token itself.
    """
    if outcome.aux_hidden_states.is_cuda:
        from outrider.ops.tree.draft_hidden_states_triton import gather_accepted_triton as gather
    else:
        gather = gather_accepted_reference
    return gather(
        outcome,
        decode,
        chunk,
        new_lengths=new_lengths,
        new_tokens=new_tokens,
        lead=lead,
        lookahead=lookahead,
    )


def gather_accepted_reference(
    outcome: StepOutcome,
    decode: DecodeRows,
    chunk: ChunkRows,
    *,
    new_lengths: torch.Tensor,  # [rows] written
    new_tokens: torch.Tensor,  # [chunk.tokens] written
    lead: int,
    lookahead: int,
) -> torch.Tensor:  # [rows * most_emitted + chunk.tokens, aux_width]
    """The same in plain torch."""
    torch.add(decode.lengths, lead, out=new_lengths)
    if new_tokens.shape[0]:
        new_tokens.copy_(next_tokens(chunk, outcome.chunk_choice) if lookahead else chunk.tokens)
    return _along_path(outcome, num_chunk_tokens=chunk.tokens.shape[0])


def _along_path(outcome: StepOutcome, *, num_chunk_tokens: int) -> torch.Tensor:
    """Aux hidden states in the order of the accepted paths, then those of the chunks."""
    states, path = outcome.aux_hidden_states, outcome.verify_result.path
    if outcome.node_queries.shape[1] == 1:  # every query token is accepted
        return states
    queries = outcome.node_queries.gather(1, path).flatten()
    chunks = states[states.shape[0] - num_chunk_tokens :]
    return torch.cat([states.index_select(0, queries), chunks])


def store_hidden_states(
    after: torch.Tensor,  # [num_query, width] of the catch-up
    hidden_states: torch.Tensor,  # [table_rows, width] written
    *,
    num_accepted: torch.Tensor,  # [rows]
    decode_rows: torch.Tensor,  # [rows]
    most_emitted: int,  # query tokens of each decode row
    chunk_ends: torch.Tensor,  # [chunk.rows] or none: the last query token of each chunk
    chunk_rows: torch.Tensor,  # [chunk.rows] or none
) -> None:
    """Store the hidden state of the last known token of each row."""
    if after.is_cuda:
        from outrider.ops.tree.draft_hidden_states_triton import store_hidden_states_triton as store
    else:
        store = store_hidden_states_reference
    store(
        after,
        hidden_states,
        num_accepted=num_accepted,
        decode_rows=decode_rows,
        most_emitted=most_emitted,
        chunk_ends=chunk_ends,
        chunk_rows=chunk_rows,
    )


def store_hidden_states_reference(
    after: torch.Tensor,  # [num_query, width] of the catch-up
    hidden_states: torch.Tensor,  # [table_rows, width] written
    *,
    num_accepted: torch.Tensor,  # [rows]
    decode_rows: torch.Tensor,  # [rows]
    most_emitted: int,
    chunk_ends: torch.Tensor,  # [chunk.rows] or none
    chunk_rows: torch.Tensor,  # [chunk.rows] or none
) -> None:
    """The same in plain torch."""
    if most_emitted == 1 and not chunk_rows.shape[0]:
        hidden_states.index_copy_(0, decode_rows, after[: decode_rows.shape[0]])
        return
    first = most_emitted * torch.arange(num_accepted.shape[0], device=num_accepted.device)
    index = torch.cat([first + num_accepted, chunk_ends])
    rows = torch.cat([decode_rows, chunk_rows])
    hidden_states.index_copy_(0, rows, after.index_select(0, index))
