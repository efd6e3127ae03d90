"""The proposal of a drafter and what the target makes of it."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTree:
    """Proposed continuations of every row. Node 0 is the last token already emitted.

    A row that proposes fewer nodes than its neighbours has absent ones: token -1, agreed by nobody.
    """

    tokens: torch.Tensor  # [rows, nodes]
    parents: torch.Tensor  # [rows, nodes] index of the parent node, -1 for node 0
    depths: torch.Tensor  # [rows, nodes]
    ancestors: torch.Tensor  # [rows, nodes] int64 bitmask of the path from node 0, itself included


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult:
    """What the target kept of each row's tree. `path` lists node indices, node 0 first."""

    path: torch.Tensor  # [rows, most_emitted] kept nodes; past `kept` the last one repeated
    num_accepted: torch.Tensor  # [rows] number of drafts agreed with
    emitted: torch.Tensor  # [rows, most_emitted] the target's token after each node of `path`
    drafted: torch.Tensor  # [rows] number of drafts proposed
