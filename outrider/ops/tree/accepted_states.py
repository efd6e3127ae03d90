"""What belongs to accepted nodes, such as hidden states. Those of rejected nodes never leave the
device."""

import torch


def accepted_states(
    hidden_states: torch.Tensor,  # [num_query, ...] or another tensor with a row per query token
    of_nodes: torch.Tensor,  # [rows, nodes] query token of each node, -1 if it does not run
    path: torch.Tensor,  # [rows, most_emitted] accepted nodes; past the last one it is repeated
) -> torch.Tensor:  # [rows * most_emitted, ...]
    """The hidden state of every node of `path`."""
    queries = of_nodes.gather(1, path).clamp_min(0)  # a row of padding need not run
    return hidden_states.index_select(0, queries.flatten())
