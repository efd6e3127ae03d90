"""Bodies with recurrent states in the lab: timed, pretended and drafted for like others."""

import json

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.steps.body import find_body
from benchmarks.steps.step_floors import step_passes

BODY = ["--body", "tiny-recurrent", "--dtype", "float32", "--device", "cpu"]


def measured(tmp_path, *flags):
    target = tmp_path / "out.json"
    done = CliRunner().invoke(app, [*flags, "--json", str(target)])
    assert done.exit_code == 0, done.output
    return json.loads(target.read_text())


@pytest.mark.slow
def test_steps_are_timed_with_prompts_read_or_pretended(tmp_path):
    flags = ["--rows", "2", "--prompt", "33", "--tokens", "4", "--context", "0"]
    read = measured(tmp_path, "decode", *BODY, *flags)
    pretended = measured(tmp_path, "decode", *BODY, *flags, "--pretend-prompts")
    (point,), (other,) = read["series"][0]["points"], pretended["series"][0]["points"]
    assert point["context"] == other["context"]


def test_only_layers_that_attend_have_products_with_keys_and_values():
    config = find_body("tiny-recurrent").config
    (step,) = step_passes(config, "bfloat16", rows=3, nodes=4, context=10.0)
    attending = config.num_layers - len(config.recurrence.layers)
    assert 0 < attending < config.num_layers
    of_layer = 2 * 12 * 10 * config.attention.heads * 2 * config.attention.head_dim
    assert step.kv_flops == attending * of_layer


@pytest.mark.slow
def test_a_module_of_its_own_drafts_chains_for_it(tmp_path):
    flags = ["--rows", "2", "--prompt", "5", "--tokens", "4", "--simulate-acceptance", "2.0"]
    drafts = ["--modules", "1", "--draft-steps", "2", "--topk", "1", "--nodes", "3"]
    found = measured(tmp_path, "iteration", *BODY, *flags, *drafts)
    assert found["series"][0]["points"][0]["emitted_per_row"] == 2.0
