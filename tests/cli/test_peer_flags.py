"""Flags of vLLM and SGLang become ours, change nothing with a note, or are refused."""

import re
from pathlib import Path

import pytest
import typer

from outrider.cli.main import _expand, app, run
from outrider.cli.take_peer_flags import COMMANDS
from outrider.config.peer_flags import PEER_FLAGS

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
    ],
    ids=str,
)
def test_a_flag_with_another_name_is_ours(given, ours):
    assert _expand(["serve", "model", *given]) == ["serve", "model", *ours]


def test_a_flag_that_means_nothing_here_says_why(capsys):
    assert _expand(["serve", "--trust-remote-code", "--port", "1"]) == ["serve", "--port", "1"]
    note = "note: --trust-remote-code changes nothing: code of a checkpoint is never run"
    assert capsys.readouterr().err.strip() == note


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
