"""Random models with quantised projections: what they hold, and what their steps read."""

import json

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.steps.bench_engines import load_bench_target
from benchmarks.steps.body import find_body
from benchmarks.steps.quantised_bodies import kind_of, saved_bytes
from benchmarks.steps.step_args import Place, Stored, parse_quantization
from outrider.errors import ConfigError

# tiny: hidden 64, intermediate 96, 4 layers, 4 heads and 2 key-value heads of 16
LAYER = 64 * (64 + 32 + 32 + 64) + 3 * 64 * 96


def test_projections_of_one_byte_save_three_of_four():
    config = find_body("tiny").config
    assert saved_bytes(config, "float32", "none") == 0
    assert saved_bytes(config, "float32", "fp8") == round(4 * LAYER * (3 - 4 / 128))
    assert saved_bytes(config, "float32", "int4") == round(4 * LAYER * (3.5 - 4 / 128))


def test_a_step_saves_the_bytes_of_the_experts_it_reads():
    config = find_body("deepseek-v4").config
    expert = 3 * 4096 * 2048 * (2 - 0.5 - 1 / 32)  # bytes that MXFP4 saves of bfloat16
    one, many = (saved_bytes(config, "bfloat16", "mxfp4", tokens=each) for each in (1, 1e6))
    assert many - one == pytest.approx(4 * (256 - 6) * expert, rel=1e-6)


def test_experts_of_deepseek_v4_are_mxfp4_and_its_attention_fp8():
    kinds = {
        name: kind_of(f"layers.0.{name}.weight", "mxfp4")
        for name in ("ffn.experts.3.w1", "ffn.shared_experts.w2", "attn.wq_b", "ffn.gate")
    }
    assert list(kinds.values()) == ["e2m1", "e4m3", "e4m3", None]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "quantization"), [("tiny", "int4"), ("deepseek-v4-tiny", "mxfp4")]
)
def test_decode_times_a_quantised_body_beside_its_own_floor(body, quantization, tmp_path):
    flags = ["--body", body, "--dtype", "float32", "--device", "cpu", "--context", "0"]
    flags += ["--rows", "1", "--prompt", "5", "--tokens", "4"]
    read = []
    for each in ("none", quantization):
        target = tmp_path / f"{each}.json"
        command = ["decode", *flags, "--quantization", each, "--json", str(target)]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        read.append(json.loads(target.read_text())["setting"]["weights"]["read_bytes"])
    assert f"projections in {quantization}" in done.output
    assert read[1] < 0.7 * read[0]


def test_stored_weights_and_unknown_names_are_refused(tmp_path):
    place = Place(
        device="cpu", dtype="float32", executor="auto", is_deterministic=True, step_tokens=64,
        quantization="fp8",
    )  # fmt: skip
    with pytest.raises(ConfigError, match="use --body"):
        load_bench_target(Stored(name="some", folder=tmp_path), place)
    with pytest.raises(ConfigError, match="use none, fp8, int4, mxfp4"):
        parse_quantization("awq")
