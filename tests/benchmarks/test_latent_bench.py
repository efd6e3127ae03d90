"""The lab on bodies with latents and experts, and their floors by hand."""

import json

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app, run
from benchmarks.steps.body import find_body
from benchmarks.steps.device_rates import DeviceRates
from benchmarks.steps.step_floors import prefill_flops, step_passes
from outrider.bench.offline.decode_floor import selected_share, weight_bytes

# tiny-latent: hidden 64, 4 heads, query rank 32, latent 32, 16 lanes each; 1 dense layer of 96,
# then 8 experts of 32, of which 2 are asked, and a shared one; vocabulary 512
QUERIES = 32 * 64 + 4 * 32 * 32
LATENTS = (32 + 16) * 64 + 4 * 32 * 32
ATTENTION = QUERIES + LATENTS + 64 * 4 * 16
EXPERT = 3 * 64 * 32
SPARSE = ATTENTION + 8 * 64 + EXPERT  # with the router and the shared one
VECTORS = 2 * 64 + 32 + 32  # norms of a layer


def test_a_step_reads_latents_once_and_the_experts_that_its_tokens_ask():
    config = find_body("tiny-latent", layers=3).config
    (step,) = step_passes(config, "bfloat16", rows=5, nodes=2, context=10.0)
    selected = 8 * (1 - (1 - 2 / 8) ** 10)
    numbers = 3 * (SPARSE + VECTORS + 8 + selected * EXPERT) + 512 * 64 + 64
    assert step.weight_bytes == pytest.approx(2 * numbers, abs=2)
    assert step.kv_bytes == 5 * 10 * 3 * (32 + 16) * 2
    assert step.flops == pytest.approx(2 * 10 * (3 * (SPARSE + 2 * EXPERT) + 512 * 64))


def test_the_first_layers_of_a_whole_body_are_dense():
    whole = find_body("tiny-latent").config
    dense, sparse = ATTENTION + 3 * 64 * 96 + VECTORS, SPARSE + VECTORS + 8 + 8 * EXPERT
    assert weight_bytes(whole, "bfloat16") == 2 * (dense + 3 * sparse + 512 * 64 + 64)


def test_more_tokens_ask_more_experts_until_all_are_read():
    experts = find_body("deepseek-v3").config.experts
    shares = [selected_share(experts, tokens) for tokens in (1, 32, 128, 10**6)]
    assert shares == pytest.approx([8 / 256, 0.6379, 0.9828, 1.0], abs=1e-4)


def test_prefill_counts_the_asked_experts_and_attention_in_the_absorbed_form():
    flops = prefill_flops(find_body("tiny-latent", layers=3).config, tokens=10)
    attention = 2 * 4 * (48 + 32) * 55 * 3
    assert flops == pytest.approx(2 * (10 * 3 * (SPARSE + 2 * EXPERT) + 512 * 64) + attention)


def test_a_layer_of_deepseek_v3_has_the_bytes_that_are_published():
    config = find_body("deepseek-v3", layers=1).config
    head = 4096 * 7168 * 2
    (step,) = step_passes(config, "bfloat16", rows=1, nodes=1, context=4096.0)
    # 187M of attention, 9 experts of 44M, the router; 1152 bytes of every cached token
    assert (step.weight_bytes - head) / 2 == pytest.approx(187.1e6 + 9 * 44.04e6 + 1.84e6, rel=1e-3)
    assert step.kv_bytes == 4096 * 1152
    assert step.kv_flops == 4096 * 2 * 128 * (576 + 512)


def test_the_heads_of_deepseek_v3_take_longer_to_compute_than_latents_to_read():
    config = find_body("deepseek-v3", layers=1).config
    rates = DeviceRates(name="", bandwidth=3.85e12, matrix=775e12)
    (empty,) = step_passes(config, "bfloat16", rows=128, nodes=1, context=0.0)
    (long,) = step_passes(config, "bfloat16", rows=128, nodes=1, context=65536.0)
    added = long.seconds(rates) - empty.seconds(rates)
    assert added == pytest.approx(2.336e12 / 775e12, rel=1e-3)  # reading takes 2.51 ms
    lite = find_body("deepseek-v2-lite", layers=1).config
    (step,) = step_passes(lite, "bfloat16", rows=128, nodes=1, context=65536.0)
    assert step.kv_flops / rates.matrix < 0.2 * step.kv_bytes / rates.bandwidth


def measured(tmp_path, *flags):
    target = tmp_path / "out.json"
    done = CliRunner().invoke(app, [*flags, "--json", str(target)])
    assert done.exit_code == 0, done.output
    return json.loads(target.read_text()), done.output


CUT = ["--body", "tiny-latent", "--layers", "2", "--dtype", "float32", "--device", "cpu"]


@pytest.mark.slow
def test_a_cut_body_is_timed_by_the_layer(tmp_path):
    flags = ["--rows", "1,3", "--prompt", "5", "--tokens", "4", "--context", "64"]
    found, shown = measured(tmp_path, "decode", *CUT, *flags)
    assert found["setting"]["weights"]["cut_layers"] == 2
    assert found["setting"]["weights"]["model"] == "tiny-latent, 2 layers"
    assert "/layer" in shown
    assert max(map(len, shown.splitlines())) <= 100


@pytest.mark.slow
def test_prompts_that_are_pretended_take_the_place_of_read_ones(tmp_path):
    flags = ["--rows", "2", "--prompt", "33", "--tokens", "4", "--context", "0"]
    read, _ = measured(tmp_path, "decode", *CUT, *flags)
    pretended, _ = measured(tmp_path, "decode", *CUT, *flags, "--pretend-prompts")
    (point,), (other,) = read["series"][0]["points"], pretended["series"][0]["points"]
    assert point["context"] == other["context"]
    assert other["emitted_per_row"] == 1.0


@pytest.mark.slow
def test_a_head_of_usual_attention_drafts_for_latents(tmp_path):
    body = ["--body", "tiny-latent", "--dtype", "float32", "--device", "cpu"]
    flags = ["--rows", "2", "--prompt", "5", "--tokens", "4", "--simulate-acceptance", "2.0"]
    found, _ = measured(tmp_path, "iteration", *body, *flags)
    assert found["series"][0]["points"][0]["emitted_per_row"] == 2.0


def test_layers_of_real_weights_cannot_be_cut(capsys):
    assert run(["decode", "--model", "x", "--layers", "2"]) == 1
    assert "give one of them" in capsys.readouterr().err
