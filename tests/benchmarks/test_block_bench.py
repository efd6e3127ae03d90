"""`python -m benchmarks blocks` on a tiny body, and its floors by hand."""

import json

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app, run
from benchmarks.steps.block_args import BlockShape, block_shapes
from benchmarks.steps.body import find_body
from benchmarks.steps.device_rates import DeviceRates
from benchmarks.steps.step_args import Tree
from benchmarks.steps.step_floors import block_passes, step_passes, total_s

TINY = ["blocks", "--body", "tiny", "--dtype", "float32", "--device", "cpu"]
SMALL = ["--rows", "1,3", "--prompt", "5", "--tokens", "4", "--trees", "3,3x6"]

# tiny: hidden 64, intermediate 96, 4 layers, 4 heads and 2 key-value heads of 16, vocabulary 512
PROJECTIONS = 64 * (64 + 32 + 32 + 64) + 3 * 64 * 96
NORMS = 2 * 64 + 2 * 16
KV_TOKEN = 2 * 2 * 16  # numbers of one token in one layer


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_every_head_and_tree_is_timed_beside_its_floor(tmp_path, kind):
    target = tmp_path / "out.json"
    flags = ["--kind", kind, "--head-layers", "2,1", "--tree-drafts", "4"]
    more = ["--simulate-acceptance", "2.5", "--json", str(target)]
    done = CliRunner().invoke(app, [*TINY, *SMALL, *flags, *more])
    assert done.exit_code == 0, done.output
    plain, *series = json.loads(target.read_text())["series"]
    assert plain["name"] == "plain"
    assert [each["name"].split(", ", 1)[1] for each in series] == [
        f"{layers} layers, {slots} slots, {tree}"
        for layers in (2, 1)
        for slots, tree in (
            ((4, "chain of 3"), (5, "tree of 6, topk 3"))
            if kind == "dflash"
            else ((3, "chain of 3"), (4, "tree of 6, topk 3"))
        )
    ]
    for point in (point for each in series for point in each["points"]):
        assert len(point["steps_s"]) == 4
        assert 1.0 < point["emitted_per_row"] <= 4.0
        assert point["floors"][0]["step_s"] > plain["points"][0]["floors"][0]["step_s"]
        assert point["of_plain_step"]
    assert "x floor" in done.output
    assert max(map(len, done.output.splitlines())) <= 100


def shape_of(kind, *, layers=2, topk=1, nodes=4):
    tree = Tree(steps=3, topk=topk, nodes=nodes, mean_emitted=2.5)
    return BlockShape(kind=kind, layers=layers, slots=4 if kind == "dflash" else 3, tree=tree)


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_the_floor_of_a_round_reads_every_matrix_of_the_head(kind):
    config, shape = find_body("tiny").config, shape_of(kind)
    rows, context = 3, 50.0
    verify = step_passes(config, "float32", rows=rows, nodes=4, context=context)
    passes = block_passes(config, "float32", shape, rows=rows, context=context)
    assert passes[: len(verify)] == verify
    written, block, score, *markov = passes[len(verify) :]
    num_aux = 3  # of the layers 0, 1 and 2: a head reads no last layer
    context_weights = 64 * num_aux * 64 + 2 * 2 * 64 * 32  # fc, and k and v of two layers
    assert written.weight_bytes == 4 * context_weights
    assert written.flops == 2.0 * rows * 2.5 * context_weights
    assert block.weight_bytes == 4 * 2 * (PROJECTIONS + NORMS)
    assert block.flops == 2.0 * rows * shape.slots * 2 * PROJECTIONS
    assert block.kv_bytes == 4 * rows * context * 2 * KV_TOKEN
    assert block.kv_flops == 2 * 2.0 * 4 * 2 * 16 * rows * shape.slots * context
    assert score.weight_bytes == 4 * 512 * 64
    assert score.flops == 2.0 * rows * 3 * 512 * 64
    assert [each.weight_bytes for each in markov] == [4 * 512 * 256] * (
        3 if kind == "dspark" else 0
    )


def test_a_floor_grows_with_layers_rows_and_branches():
    config, rates = find_body("tiny").config, DeviceRates(name="x", bandwidth=1e12, matrix=1e9)

    def floor(rows=1, **sizes):
        shape = shape_of("dspark", **sizes)
        return total_s(block_passes(config, "float32", shape, rows=rows, context=9.0), rates)

    assert floor() < floor(layers=5) < floor(layers=5, rows=64)
    assert floor() < floor(topk=3, nodes=10)


def test_trees_are_written_as_lengths_and_sizes():
    shapes = list(
        block_shapes("dflash", layers=(5,), trees="7,4x16", tree_drafts=15, mean_emitted=3.0)
    )
    assert [(each.slots, each.tree.steps, each.tree.nodes) for each in shapes] == [
        (8, 7, 8),
        (16, 15, 16),
    ]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--trees", "4y16"], "topk x nodes"),
        (["--trees", "1x16"], "topk x nodes"),
        (["--kind", "medusa"], "dflash or dspark"),
        (["--trees", "2", "--simulate-acceptance", "4"], "--simulate-acceptance 4"),
    ],
)
def test_flags_that_cannot_work_are_refused(capsys, flags, words):
    assert run([*TINY, *flags]) == 1
    assert words in capsys.readouterr().err
