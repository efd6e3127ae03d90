import random

import pytest
import torch
from support.trees import random_tree, tree_of, walk

from outrider.ops.tree.chain import single_node
from outrider.ops.tree.verify import path_tokens, verify


@pytest.mark.parametrize("nodes", [1, 2, 5, 16, 64])
@pytest.mark.parametrize("seed", range(4))
def test_verify_walks_from_node_0_along_the_targets_own_tokens(nodes, seed):
    rng = random.Random(seed)
    rows, vocab = 9, 3 if nodes < 6 else 70
    tree = random_tree(rng, rows=rows, nodes=nodes, vocab=vocab)
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    choice = [[rng.randrange(vocab) for _ in range(nodes)] for _ in range(rows)]
    for row in range(rows):  # make agreement common, so that deep paths occur
        for node in range(1, nodes):
            if rng.random() < 0.6:
                choice[row][parents[row][node]] = tokens[row][node]
    verify_result = verify(tree, torch.tensor(choice), nodes)
    for row in range(rows):
        path = walk(tree, choice, row)
        assert verify_result.num_accepted[row] == len(path) - 1
        assert verify_result.path[row, : len(path)].tolist() == path
        assert verify_result.path[row, len(path) :].tolist() == [path[-1]] * (nodes - len(path))
        assert verify_result.emitted[row, : len(path)].tolist() == [choice[row][n] for n in path]


def test_a_tree_of_one_node_emits_the_targets_token():
    verify_result = verify(single_node(torch.tensor([4, 9])), torch.tensor([[7], [8]]), 1)
    assert verify_result.num_accepted.tolist() == [0, 0]
    assert verify_result.emitted.tolist() == [[7], [8]]


def test_a_chain_is_kept_up_to_the_first_disagreement():
    chain = tree_of([[1, 2, 3, 4]], [[-1, 0, 1, 2]])
    verify_result = verify(chain, torch.tensor([[2, 3, 9, 5]]), 4)
    assert verify_result.num_accepted.item() == 2
    assert verify_result.emitted[0, :3].tolist() == [2, 3, 9]


def test_path_tokens_are_the_drafts_from_node_0_down_to_each_node():
    tree = tree_of([[1, 5, 6, 7]], [[-1, 0, 0, 2]])
    assert path_tokens(tree)[0].tolist() == [[-1, -1, -1], [5, -1, -1], [-1, 6, -1], [-1, 6, 7]]
