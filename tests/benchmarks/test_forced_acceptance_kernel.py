"""The forced agreement as a kernel, against `benchmarks/forced_acceptance.py`, at odd sizes."""

import random

import pytest
import torch
from support.trees import random_tree, tree_of

from benchmarks.forced_acceptance import ChanceVerifier, ForcedVerifier
from benchmarks.forced_acceptance_triton import agree


@pytest.mark.fast_cases(5)
@pytest.mark.parametrize("nodes", [1, 2, 6, 17, 64])
@pytest.mark.parametrize("mean", [1.0, 2.5, 4.0])
def test_the_kernel_forces_what_the_torch_law_forces(nodes, mean):
    rng = random.Random(nodes)
    verifier = ForcedVerifier(mean, device=torch.device("cpu"))
    clock = verifier._clock.clone()
    for _ in range(3):  # the clock goes on
        tree = random_tree(rng, rows=5, nodes=nodes, vocab=90)
        check(verifier, clock, tree, torch.tensor([[rng.randrange(90)] * nodes for _ in range(5)]))
    assert torch.equal(clock, verifier._clock)


def test_the_kernel_accepts_by_the_same_chances():
    rng = random.Random(3)
    verifier = ChanceVerifier(0.6, device=torch.device("cpu"))
    clock = verifier._clock.clone()
    for _ in range(3):
        tree = random_tree(rng, rows=5, nodes=6, vocab=90)
        check(verifier, clock, tree, torch.tensor([[rng.randrange(90)] * 6 for _ in range(5)]))
    assert torch.equal(clock & (2**32 - 1), verifier._clock)


def test_absent_nodes_are_left_out():
    tree = tree_of([[7, 3, -1, -1], [7, -1, -1, -1]], [[-1, 0, 0, 0], [-1, 0, 0, 0]])
    verifier = ForcedVerifier(3.0, device=torch.device("cpu"))
    check(verifier, verifier._clock.clone(), tree, torch.zeros(2, 4, dtype=torch.int64))


def check(verifier, clock, tree, choice):
    columns = (tree.tokens, tree.parents, tree.depths, tree.ancestors)
    got = agree(columns, choice, clock, verifier._pace, verifier._thresholds)
    for ours, expected in zip(got, verifier._agree(tree, choice), strict=True):
        assert torch.equal(ours, expected)
