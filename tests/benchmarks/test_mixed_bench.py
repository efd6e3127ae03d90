"""`mixed`: prompts beside decode rows, against decode rows of as many query tokens."""

import json

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.steps.body import find_body
from benchmarks.steps.step_floors import mixed_passes, step_passes

SMALL = ["--device", "cpu", "--dtype", "float32", "--tokens", "6"]


def measured(tmp_path, *flags):
    target = tmp_path / "out.json"
    done = CliRunner().invoke(app, ["mixed", *flags, "--json", str(target)])
    assert done.exit_code == 0, done.output
    return done.output, json.loads(target.read_text())


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("body", ["tiny", "tiny-latent", "tiny-recurrent", "deepseek-v4-tiny"])
def test_every_case_has_steps_of_equal_tokens_with_and_without_prompts(body, tmp_path):
    sizes = ["--rows", "1,3", "--lengths", "8", "--prompts", "2", "--nodes", "1,4"]
    printed, found = measured(tmp_path, "--body", body, *SMALL, *sizes)
    lines = [
        (each["case"]["nodes"], each["case"]["rows"], each["tokens"]) for each in found["lines"]
    ]
    assert lines == [(1, 1, 17), (1, 3, 19), (4, 1, 20), (4, 3, 28)]
    for line in found["lines"]:
        assert line["mixed"]["num"] >= 3 <= line["alone"]["num"]
        assert line["ratio"] == line["mixed"]["step_s"] / line["alone"]["step_s"]
        assert line["floors"][-1]["step_s"] > 0
        assert f"{line['ratio']:.3f}x" in printed


def test_prompts_that_are_no_whole_rows_are_refused():
    done = CliRunner().invoke(app, ["mixed", "--body", "tiny", "--lengths", "10", "--nodes", "4"])
    assert done.exit_code == 1
    assert "prompts of 10 tokens are no whole rows of 4 query tokens" in str(done.exception)


def test_the_floor_of_a_mixed_step_has_the_products_of_all_tokens_and_few_logits():
    config = find_body("tiny").config
    sizes = {"rows": 3, "nodes": 4, "context": 10.0}
    (plain,) = mixed_passes(config, "bfloat16", **sizes, prompts=())
    assert (plain,) == step_passes(config, "bfloat16", **sizes)
    (mixed,) = mixed_passes(config, "bfloat16", **sizes, prompts=(8, 8))
    (alike,) = step_passes(config, "bfloat16", rows=7, nodes=4, context=10.0)
    unread = 2 * (16 - 2) * config.vocab_size * config.block.hidden
    assert mixed.flops == alike.flops - unread
    assert mixed.weight_bytes == plain.weight_bytes
    assert mixed.kv_bytes == plain.kv_bytes
    assert mixed.kv_flops > plain.kv_flops
