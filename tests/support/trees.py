"""Random draft trees, and what verification means, written the slow way."""

import random

import torch

from outrider.ops.tree.draft_tree import DraftTree


def tree_of(tokens: list[list[int]], parents: list[list[int]]) -> DraftTree:
    """Build the records of a tree from its parent pointers."""
    depths, ancestors = [], []
    for row in parents:
        depth, mask = [], []
        for node, parent in enumerate(row):
            depth.append(0 if parent < 0 else depth[parent] + 1)
            mask.append((1 << node) | (0 if parent < 0 else mask[parent]))
        depths.append(depth)
        # Node 63 sets the sign bit of an int64.
        ancestors.append([bits - (1 << 64) if bits >= 1 << 63 else bits for bits in mask])
    return DraftTree(
        tokens=torch.tensor(tokens),
        parents=torch.tensor(parents),
        depths=torch.tensor(depths),
        ancestors=torch.tensor(ancestors),
    )


def random_tree(rng: random.Random, *, rows: int, nodes: int, vocab: int) -> DraftTree:
    """Each node hangs below an earlier one; siblings carry different tokens."""
    tokens, parents = [], []
    for _ in range(rows):
        row_tokens, row_parents, taken = [rng.randrange(vocab)], [-1], set()
        while len(row_tokens) < nodes:
            parent, token = rng.randrange(len(row_tokens)), rng.randrange(vocab)
            if (parent, token) not in taken:
                taken.add((parent, token))
                row_parents.append(parent)
                row_tokens.append(token)
        tokens.append(row_tokens)
        parents.append(row_parents)
    return tree_of(tokens, parents)


def walk(tree: DraftTree, choice: list[list[int]], row: int) -> list[int]:
    """Accepted nodes of one row: from node 0, step to the child with the chosen token."""
    tokens, parents = tree.tokens[row].tolist(), tree.parents[row].tolist()
    path = [0]
    while True:
        wanted = choice[row][path[-1]]
        below = [n for n, p in enumerate(parents) if p == path[-1] and tokens[n] == wanted]
        if not below:
            return path
        path.append(below[0])
