"""Flags of vLLM and SGLang become ours, change nothing with a note, or are refused."""

import json
import re
from pathlib import Path

import pytest
import typer

from outrider.cli.main import _expand, app, run
from outrider.cli.take_peer_flags import COMMANDS
from outrider.config.peer_flags import PEER_FLAGS
from outrider.config.peer_meaning import is_peer_flag

PHASES = ("decode", "prefill")
PAGE = Path(__file__).parents[2] / "docs/migrate.md"


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        (["--chunked-prefill-size", "512"], ["--max-num-batched-tokens", "512"]),
        (["--chunked-prefill-size=512"], ["--max-num-batched-tokens", "512"]),
        (["--disable-overlap-schedule"], ["--depth", "0"]),
        (["--disable-radix-cache"], ["--no-enable-prefix-caching"]),
        (["--speculative-adaptive", "--steps", "3"], ["--adaptive", "--steps", "3"]),
        (["--speculative-adaptive=false"], ["--no-adaptive"]),
        (["--disable-radix-cache=false"], []),
        (["--async-scheduling=True"], ["--depth", "1"]),
        (["--no-async-scheduling"], ["--depth", "0"]),
        (["--no-enable-hierarchical-cache"], []),
        (["--compilation-config", '{"cudagraph_mode": "NONE"}'], ["--enforce-eager"]),
        (["--compilation-config.cudagraph_mode", "NONE"], ["--enforce-eager"]),
        (["-cc.cudagraph_mode=none"], ["--enforce-eager"]),
        (["-O0", "--port", "1"], ["--enforce-eager", "--port", "1"]),
        (["-O", "0"], ["--enforce-eager"]),
        (
            ["--cuda-graph-config", json.dumps({key: {"backend": "disabled"} for key in PHASES})],
            ["--enforce-eager"],
        ),
        (["--return-hidden-states-mode", "last"], ["--enable-return-hidden-states"]),
        (["--sampling-defaults=openai"], ["--generation-config", "vllm"]),
        (["--mamba-cache-mode", "none"], ["--row-snapshots", "0"]),
        (
            ["--limit-mm-data-per-request", '{"image": 1}'],
            ["--limit-mm-per-prompt", '{"image": 1}'],
        ),
    ],
    ids=str,
)
def test_a_flag_with_another_name_is_ours(given, ours):
    assert _expand(["serve", "model", *given]) == ["serve", "model", *ours]


def test_a_flag_that_means_nothing_here_says_why(capsys):
    assert _expand(["serve", "--trust-remote-code", "--port", "1"]) == ["serve", "--port", "1"]
    note = "note: --trust-remote-code changes nothing: code of a checkpoint is never run"
    assert capsys.readouterr().err.strip() == note


@pytest.mark.parametrize(
    "given",
    [
        ["-O3"],
        ["--compilation-config", '{"cudagraph_mode": "FULL"}'],
        ["--compilation-config", "3"],
        ["-cc.mode=3"],
        ["--cuda-graph-config", '{"decode": {"backend": "disabled"}}'],
        ["--no-enable-chunked-prefill"],
        ["--linear-attn-backend", "flashinfer"],
    ],
    ids=str,
)
def test_other_values_of_a_flag_change_nothing(capsys, given):
    assert _expand(["serve", "model", *given]) == ["serve", "model"]
    assert "changes nothing" in capsys.readouterr().err


def test_further_values_of_a_flag_that_means_nothing_are_left_out(capsys):
    given = ["serve", "m", "--lora-target-modules", "q_proj", "v_proj", "--load-format=auto", "-m"]
    assert _expand(given) == ["serve", "m", "-m"]
    assert capsys.readouterr().err.count("changes nothing") == 2


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["--prefill-attention-backend", "fa3"], "use --attention-backend"),
        (["--pp-size", "2"], "use --tensor-parallel-size"),
        (["--cuda-graph-bs", "1", "2", "4"], "omit the flag"),
        (["--chunked-prefill-size", "-1"], "always read in chunks"),
        (["--chunked-prefill-size"], "needs a value"),
        (["--load-format", "bitsandbytes"], "convert them, or use --load-format auto"),
        (["--schedule-policy", "lpm"], "or by --scheduling-policy priority"),
        (["--hf-overrides", "{}"], "change that file in a copy"),
        (["--speculative-adaptive=maybe"], "takes no value, got maybe"),
        (["--kv-cache-memory-bytes", "1000"], "use --kv-tokens"),
        (["--return-hidden-states-mode", "some"], "give last or full"),
        (["--cuda-graph-bs-decode", "1", "2"], "omit the flag"),
    ],
    ids=str,
)
def test_a_flag_that_cannot_be_followed_is_refused_with_the_reason(capsys, command, given, reason):
    assert run([command, *given]) == 1
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("command", [["serve"], ["chat"], ["generate", "hi"]], ids=str)
def test_a_backend_of_another_project_is_refused_before_a_model_is_looked_for(capsys, command):
    flags = ["--model", "no/such-model", "--attention-backend", "flashinfer"]
    assert run([*command, *flags]) == 1
    assert "there is no adapter" in capsys.readouterr().err


def test_our_own_flags_and_prompts_are_left_alone():
    prompt = ["generate", "--max-tokens", "3", "--", "--trust-remote-code"]
    assert _expand(prompt) == prompt
    assert _expand(["models", "--trust-remote-code"]) == ["models", "--trust-remote-code"]


def test_every_translation_names_a_flag_that_exists():
    group = typer.main.get_command(app)
    for name, flag in PEER_FLAGS.items():
        params = group.commands["serve"].params
        known = {each for one in params for each in (*one.opts, *one.secondary_opts)}
        assert name not in known, name
        if flag.means == "ours":
            assert flag.text.split()[0] in known


def test_every_flag_of_the_comparison_is_known():
    params = typer.main.get_command(app).commands["serve"].params
    known = {each for one in params for each in (*one.opts, *one.secondary_opts)}
    rows = [line.split("|") for line in PAGE.read_text().splitlines() if line.count("|") == 5]
    named = {flag for row in rows for flag in re.findall(r"`(--[a-z0-9-]+)", row[1] + row[2])}
    assert len(named) > 50
    assert not [flag for flag in named if flag not in known and not is_peer_flag(flag)]


def test_every_flag_is_in_the_guide_with_its_meaning():
    rows = [line for line in PAGE.read_text().splitlines() if re.match(r"\| (other )?`-", line)]
    for name, flag in PEER_FLAGS.items():
        assert any(f"`{name}`" in row or f"`{name} " in row for row in rows if says(row, flag)), (
            name
        )
        for value, meaning in flag.of_values.items():
            is_off, told = value == "false", [row for row in rows if says(row, meaning)]
            spelled = f"`--no-{name[2:]}`" if is_off else f"{value}`"
            assert any((is_off or f"`{name}" in row) and spelled in row for row in told), name


def says(row, flag):
    words = {"ours": "`", "nothing": "changes nothing: ", "refused": "refused: "}
    return f"| {words[flag.means]}{flag.text}" in row
