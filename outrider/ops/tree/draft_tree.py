"""A draft tree, what the target accepts of it, and what a drafter learns from the step."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTree:
    """Proposed continuations of every row. Node 0 is the last token already emitted.

    A row that proposes fewer nodes than others has absent nodes: token -1, which never agrees.
    """

    tokens: torch.Tensor  # [rows, nodes]
    parents: torch.Tensor  # [rows, nodes] index of the parent node, -1 for node 0
    depths: torch.Tensor  # [rows, nodes]
    ancestors: torch.Tensor  # [rows, nodes] int64 bitmask of the path from node 0, itself included


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult:
    """What the target accepts of each row's tree. `path` lists node indices, node 0 first."""

    path: torch.Tensor  # [rows, most_emitted] accepted nodes; past the last one it is repeated
    num_accepted: torch.Tensor  # [rows] accepted drafts
    emitted: torch.Tensor  # [rows, most_emitted] the target's token after each node of `path`
    drafted: torch.Tensor  # [rows] proposed drafts


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """The result of a target's step, as a drafter needs it."""

    aux_hidden_states: torch.Tensor  # [num_query, aux_width] of every query token
    node_queries: torch.Tensor  # [rows, nodes] query token of each node; -1 if it did not run
    verify_result: VerifyResult
    chunk_choice: torch.Tensor  # [chunk.rows] the target's token after each chunk
