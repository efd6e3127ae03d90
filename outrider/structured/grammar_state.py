"""Which tokens the grammar of a row allows after each node of its draft tree."""

from collections.abc import Sequence
from typing import Protocol

from outrider.structured.shared_masks import Masks


class GrammarState(Protocol):
    """How far the text of one row has come in its grammar.

    Tokens that were tried since `begin` are undone by `abort`; `commit` makes the first of them
    permanent. Unlike KV, this state has no positions, so a rejected draft must be undone.
    """

    def begin(self) -> None: ...

    def try_token(self, token: int) -> bool:
        """Advance by a token. Returns False, and changes nothing, if the grammar forbids it."""
        ...

    def rollback_to(self, num: int) -> None:
        """Undo all but the first `num` tokens tried."""
        ...

    def commit(self, num: int) -> None:
        """Make the first `num` tokens tried permanent, and undo the others."""
        ...

    def abort(self) -> None: ...

    def fill_mask(self, bits: Masks, place: int) -> None:
        """Write the tokens that may come next to row `place` of `bits` [n, words] int32."""
        ...


def advance(state: GrammarState, tokens: Sequence[int]) -> None:
    """Commit emitted tokens, up to the first that the grammar forbids: the text ends there."""
    state.begin()
    num = 0
    for token in tokens:
        if not state.try_token(token):
            break
        num += 1
    state.commit(num)


def mask_tree(
    state: GrammarState,
    tokens: Sequence[int],  # of each node; -1 for a node that is absent
    parents: Sequence[int],
    bits: Masks,  # [n, words] int32
    first: int,  # the row of node 0, whose token is committed already
) -> None:
    """Write the mask of every node as if the tokens on its path had been emitted.

    A node below a forbidden token can never be accepted, so its mask does not matter: its row keeps
    all bits set, as the caller gave it. The grammar state does not change.
    """
    children: list[list[int]] = [[] for _ in tokens]
    for node in range(len(tokens) - 1, 0, -1):
        if tokens[node] >= 0:
            children[parents[node]].append(node)
    state.begin()
    stack = [(0, 0)]  # nodes to visit, each with its depth
    while stack:
        node, depth = stack.pop()
        if node:
            state.rollback_to(depth - 1)
            if not state.try_token(tokens[node]):
                continue
        state.fill_mask(bits, first + node)
        stack += [(child, depth + 1) for child in children[node]]
    state.abort()
