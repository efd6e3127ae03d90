"""The forced agreement on a GPU, and a recorded benchmark from flags to file."""

import json
import random

import pytest
import torch
from support.trees import random_tree

from benchmarks.__main__ import run
from benchmarks.forced_acceptance import ForcedVerifier
from outrider.ops.tree.draft_tree import DraftTree


@pytest.mark.parametrize("nodes", [1, 6, 16, 64])
@pytest.mark.parametrize("mean", [1.0, 2.5, 3.0])
def test_a_verdict_on_the_gpu_is_that_of_the_cpu(nodes, mean):
    rng = random.Random(nodes)
    here, there = (ForcedVerifier(mean, device=torch.device(d)) for d in ("cpu", "cuda"))
    for _ in range(4):
        tree = random_tree(rng, rows=65, nodes=nodes, vocab=90)
        choice = torch.tensor([[rng.randrange(90) for _ in range(nodes)] for _ in range(65)])
        columns = (tree.tokens, tree.parents, tree.depths, tree.ancestors)
        names = ("tokens", "parents", "depths", "ancestors")
        moved = DraftTree(**dict(zip(names, (each.cuda() for each in columns), strict=True)))
        ours, expected = there(moved, choice.cuda(), nodes), here(tree, choice, nodes)
        for name in ("path", "num_accepted", "emitted", "drafted"):
            assert torch.equal(getattr(ours, name).cpu(), getattr(expected, name)), name


@pytest.mark.parametrize("flags", [[], ["--topk", "4", "--nodes", "16", "--breakdown"]], ids=str)
def test_iterations_are_measured_on_a_small_body(flags, tmp_path):
    target = tmp_path / "out.json"
    body = ["--body", "smollm2-135m", "--rows", "1,5", "--prompt", "40", "--tokens", "8"]
    command = ["iteration", *body, "--with-plain", "--device", "cuda", *flags]
    assert run([*command, "--json", str(target)]) == 0
    drafted, plain, _ = json.loads(target.read_text())["series"]
    assert [point["emitted_per_row"] for point in drafted["points"]] == [3.0, 3.0]
    assert [point["emitted_per_row"] for point in plain["points"]] == [1.0, 1.0]
    assert all(point["forward_occupancy"] > 0 for point in drafted["points"])
    for breakdown in drafted["breakdowns"]:
        assert any(share["name"] == "GEMM" and share["runs"] for share in breakdown["classes"])
