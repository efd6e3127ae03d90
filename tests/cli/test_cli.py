"""The command line without a model: parsing, refusals, exit codes."""

import re
import subprocess
import sys

import numpy
import pytest
import typer
from safetensors.numpy import save_file

from outrider import __version__
from outrider.cli.main import app, run

GENERATE = ["generate", "hello"]
WRONG = [
    (["generate", "--bogus"], 2, "--bogus"),
    (["frobnicate"], 2, "frobnicate"),
    ([*GENERATE, "--top-q", "1"], 2, "--top-p"),
    ([*GENERATE, "--max-tokens", "many"], 2, "--max-tokens"),
    ([*GENERATE, "--dtype", "float3"], 2, "float32"),
    ([*GENERATE, "extra"], 2, "extra"),
    ([*GENERATE, "--temperature", "-1"], 1, "use 0 for greedy"),
    ([*GENERATE, "--top-p", "0"], 1, "top_p"),
    ([*GENERATE, "--n", "0"], 1, "of at least 1"),
    ([*GENERATE, "--stop", ""], 1, "non-empty"),
    ([*GENERATE, "--draft", "eagle"], 1, "neither auto, none, head, ngram, suffix nor mtp"),
    ([*GENERATE, "--raw", "--system", "x"], 1, "--system"),
    ([*GENERATE, "--logprobs", "3"], 1, "--json"),
    ([*GENERATE, "--model", "no-such-model"], 1, "unknown model"),
    ([*GENERATE, "--model", "./no/such/folder"], 1, "check the path"),
    (["generate", ""], 1, "empty"),
    (["generate", "--input", "a.jsonl"], 1, "--output"),
    (["generate", "--input", "/no/such", "--output", "b.jsonl"], 1, "check --input"),
    ([*GENERATE, "--input", __file__, "--output", "b.jsonl"], 1, "leave those out"),
    (["generate", "--input", __file__, "--output", __file__], 1, "another file"),
    (["generate", "--input", __file__, "--output", "/dev/full"], 1, "not a regular file"),
    (["generate", "--input", __file__, "--output", "/"], 1, "not a regular file"),
    ([*GENERATE, "--model", ""], 1, "--model"),
    ([*GENERATE, "--speculative-config", "{}"], 1, 'lacks "method"'),
    ([*GENERATE, "--speculative-config", ""], 1, "not JSON"),
    ([*GENERATE, "--top-q", "1"], 2, "see outrider generate --help"),
    (["bench", "offline", "--bogus"], 2, "see outrider bench offline --help"),
    (["bench", "decode", "--body", "tiny"], 1, "python -m benchmarks decode"),
    (["bench", "widen", "--help"], 1, "python -m benchmarks widen"),
    (["frobnicate"], 2, "see outrider --help"),
    (["chat", "--min-p", "2"], 1, "min_p"),
    (["pull", "no-such-model"], 1, "unknown model"),
    (["serve", "--max-num-seqs", "0"], 2, "--max-num-seqs"),
    (["serve", "--max-queued", "-1"], 2, "--max-queued"),
    (["serve", "--kv-tokens", "0"], 2, "--kv-tokens"),
    (["serve", "--stream-ping-s", "0"], 1, "above 0"),
]


@pytest.mark.parametrize(("arguments", "code", "reason"), WRONG, ids=lambda v: str(v)[:60])
def test_a_mistake_is_answered_with_one_line_and_a_code(arguments, code, reason, capsys):
    assert run(arguments) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1
    assert reason in shown.err


def test_version_and_help_succeed(capsys):
    assert run(["--version"]) == 0
    assert run(["generate", "--help"]) == 0
    shown = capsys.readouterr().out
    assert __version__ in shown
    for flag in ("--model", "--draft", "--max-tokens", "--min-p", "--seed", "--raw", "--json"):
        assert flag in shown


@pytest.mark.parametrize("command", [[], ["generate"], ["models"], ["bench"], ["bench", "offline"]])
def test_h_is_short_for_help(command, capsys):
    assert run([*command, "-h"]) == 0
    assert f"Usage: {' '.join(['outrider', *command])} " in capsys.readouterr().out


def test_an_interrupted_command_says_so_in_one_line(monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("outrider.hub.resolve_model.resolve_model", interrupt)
    assert run(["pull", "anything"]) == 130
    shown = capsys.readouterr()
    assert shown.err == "interrupted; run the same command again to go on\n"


@pytest.mark.parametrize("arguments", [["--version"], ["models"]])
def test_a_full_disk_behind_stdout_is_one_line_and_a_code(arguments):
    code = "from outrider.cli.main import main; main()"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot use the output: No space left")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_report_quotes_text_that_no_encoding_has(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["\\ud800"]}')
    save_file({"weight": numpy.zeros(1)}, tmp_path / "model.safetensors")
    command = [sys.executable, "-c", "from outrider.cli.main import main; main()", "doctor"]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, timeout=100)
    assert "Traceback" not in done.stderr
    assert "\\ud800" in done.stdout


def test_mistakes_are_found_before_torch_is_loaded():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from outrider.cli.main import run\n"
        "codes = [run(['generate', 'a', '--top-p', '0']), run(['generate', 'a', '--model', 'x'])]\n"
        "assert codes == [1, 1], codes\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command", ["serve", "generate", "chat", "check", "doctor", "bench serve", "bench acceptance"]
)
def test_help_writes_every_flag_in_full_on_80_columns(command, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*command.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    group = typer.main.get_command(app)
    for name in command.split():
        group = group.commands[name]
    flags = [flag for each in group.params for flag in (*each.opts, *each.secondary_opts)]
    words = re.split(r"[\s,/]+", shown)
    assert [flag for flag in flags if flag.startswith("--") and flag not in words] == []
