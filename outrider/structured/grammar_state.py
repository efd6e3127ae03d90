"""Which tokens the grammar of a row allows after every node of its draft tree."""

from collections.abc import Sequence
from typing import Protocol

import torch


class GrammarState(Protocol):
    """Where one row is in its grammar. It is not addressed by position, so it can be taken back.

    What was tried since `begin` is forgotten by `abort`, or kept up to some length by `commit`.
    """

    def begin(self) -> None: ...

    def ride(self, token: int) -> bool:
        """Try a token; one that the grammar does not allow changes nothing."""
        ...

    def retreat(self, num: int) -> None:
        """Take back all but the first `num` tokens tried."""
        ...

    def commit(self, num: int) -> None:
        """Keep the first `num` tokens tried for good."""
        ...

    def abort(self) -> None: ...

    def allow(self, bits: torch.Tensor, place: int) -> None:
        """Write which tokens may come next to row `place` of [n, words] int32, bit by bit."""
        ...


def advance(state: GrammarState, tokens: Sequence[int]) -> None:
    """Keep tokens that were emitted. Where one is not of the grammar, its answer is over."""
    state.begin()
    num = 0
    for token in tokens:
        if not state.ride(token):
            break
        num += 1
    state.commit(num)


def mask_tree(
    state: GrammarState,
    tokens: Sequence[int],  # of each node; -1 is an absent one
    parents: Sequence[int],
    bits: torch.Tensor,  # [n, words] int32
    first: int,  # the row of node 0, whose token is the last one that was committed
) -> None:
    """Write the mask of every node as if the tokens on its path had been emitted.

    Below a token that the grammar forbids nothing is ever chosen, so all is allowed there: those
    rows are left alone, and come with all bits set. The state is afterwards as it was before.
    """
    children: list[list[int]] = [[] for _ in tokens]
    for node in range(len(tokens) - 1, 0, -1):
        if tokens[node] >= 0:
            children[parents[node]].append(node)
    state.begin()
    stack = [(0, 0)]  # nodes to visit, and how many tokens lie on the path to each
    while stack:
        node, depth = stack.pop()
        if node:
            state.retreat(depth - 1)
            if not state.ride(tokens[node]):
                continue
        state.allow(bits, first + node)
        stack += [(child, depth + 1) for child in children[node]]
    state.abort()
