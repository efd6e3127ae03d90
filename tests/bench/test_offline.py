"""`outrider bench offline` from flags to table and file, on a tiny model."""

import io
import json
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.bench.peers.peer_catalogue import PEERS
from outrider.bench.peers.peer_protocol import PeerModel
from outrider.cli.main import run

SHAPE = ["--prompt-tokens", "6", "--max-tokens", "9", "--batch", "1,3", "--threads", "1"]


def bench(folder: Path, *flags: str) -> int:
    return run(["bench", "offline", "--model", str(folder), "--quick", *SHAPE, *flags])


@pytest.fixture(scope="module")
def outcome(
    tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, Any]]:
    """Two types of weights beside transformers: what was printed and what was written."""
    target = tmp_path_factory.mktemp("bench") / "result.json"
    flags = ["--dtype", "float32,int8", "--peers", "transformers", "--json", str(target)]
    with redirect_stdout(io.StringIO()) as shown:
        assert bench(tiny_folder, *flags) == 0
    assert [path.name for path in target.parent.iterdir()] == ["result.json"]
    return shown.getvalue(), json.loads(target.read_text())


@pytest.mark.slow
def test_the_table_names_machine_engines_and_floor_within_a_hundred_columns(outcome):
    shown, _ = outcome
    header, *rows = shown[shown.index(" batch") :].splitlines()
    for word in ("tokens/s", "ms/step", "of floor", "vs transformers"):
        assert word in header
    for word in (
        "1 threads",
        "torch",
        "GB/s",
        "6 prompt tokens",
        "9 new tokens",
        "seed 0",
        "first token",
    ):
        assert word in shown
    assert max(map(len, [header, *rows])) <= 100
    engines = [row.split()[:3] for row in rows[:10]]
    for batch in ("1", "3"):
        assert [batch, "outrider", "float32"] in engines
        assert [batch, "outrider", "int8"] in engines
        assert [batch, "transformers", "float32"] in engines
        assert [batch, "floor", "int8"] in engines


@pytest.mark.slow
def test_the_file_says_on_what_and_with_which_work_it_was_measured(outcome):
    _, written = outcome
    assert written["machine"].keys() == {
        "cpu",
        "cores",
        "threads",
        "torch",
        "outrider",
        "has_busy_neighbour",
    }
    assert written["machine"]["threads"] == 1
    assert written["workload"] == {
        "origin": "random ids, seed 0",
        "prompt_tokens": 6,
        "max_tokens": 9,
        "mean_context": 10.5,
    }
    assert written["bandwidth_bytes_per_s"] > 0
    assert written["not_measured"] == {}


@pytest.mark.slow
def test_the_file_has_every_engine_at_every_batch_with_its_single_runs(outcome):
    _, written = outcome
    named = [(result["engine"], result["dtype"]) for result in written["results"]]
    assert named == [("outrider", "float32"), ("outrider", "int8"), ("transformers", "float32")]
    for result in written["results"]:
        assert result["version"]
        assert result["first_token_runs_s"] == [result["first_token_s"]]
        assert [decode["batch"] for decode in result["decode"]] == [1, 3]
        for decode in result["decode"]:
            (only,) = decode["runs"]
            assert only == {key: decode[key] for key in ("tokens_per_s", "step_s")}
            # 9 tokens a row, of which the prompt gives the first: a step emits one per row.
            assert decode["tokens_per_s"] * decode["step_s"] == pytest.approx(decode["batch"])


@pytest.mark.slow
def test_ratios_are_quotients_of_tokens_per_second(outcome):
    _, written = outcome
    floors = {(floor["dtype"], floor["batch"]): floor for floor in written["floors"]}
    float32, int8, peer = written["results"]
    for ours in (float32, int8):
        for mine, theirs in zip(ours["decode"], peer["decode"], strict=True):
            rate = mine["tokens_per_s"]
            floor = floors[ours["dtype"], mine["batch"]]
            assert mine["of_floor"] == pytest.approx(rate / floor["tokens_per_s"])
            assert mine["against"] == {
                "transformers": pytest.approx(rate / theirs["tokens_per_s"])  # it has no int8
            }
            bytes_read = floor["weight_bytes"] + floor["kv_bytes"]
            assert floor["step_s"] == pytest.approx(bytes_read / floor["bandwidth"])


@pytest.mark.slow
def test_real_prompts_run_alone_beside_a_busy_neighbour(tiny_folder, tmp_path, capsys):
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"id": index, "prompt": "abcdefgh"[index:] * 2} for index in range(3)]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = ["--peers", "none", "--busy-neighbour", "--prompts", str(prompts)]
    assert bench(tiny_folder, *flags) == 0
    shown = capsys.readouterr().out
    assert str(prompts) in shown
    assert "one busy process beside" in shown
    assert "transformers" not in shown


def test_too_few_long_prompts_are_counted_in_the_refusal(tiny_folder, tmp_path, capsys):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "abcdefgh"}\n"abc"\n')
    assert bench(tiny_folder, "--prompts", str(prompts)) == 1
    assert "has 1 prompts of 6 tokens or more, but a batch needs 3" in capsys.readouterr().err


def test_work_beyond_the_context_is_refused_before_anything_is_loaded(tiny_folder, capsys):
    assert bench(tiny_folder, "--max-tokens", "251") == 1
    assert "context of 256" in capsys.readouterr().err


WRONG = [
    (["--dtype", "int4"], 1, "'int4'"),
    (["--dtype", ""], 1, "--dtype is empty"),
    (["--batch", "1,x"], 1, "such as 1,8,32"),
    (["--batch", "0"], 1, "such as 1,8,32"),
    (["--prompt-tokens", "0"], 1, "--prompt-tokens"),
    (["--max-tokens", "1"], 1, "--max-tokens"),
    (["--peers", "vllm"], 1, "transformers"),
    (["--threads", "-1"], 2, "--threads"),
    (["--json", "/no/such/folder/x.json"], 1, "--json"),
    (["--model", "no-such-model"], 1, "unknown model"),
]


@pytest.mark.parametrize(("flags", "code", "reason"), WRONG, ids=lambda v: str(v)[:40])
def test_a_wrong_flag_is_answered_with_one_line(flags, code, reason, capsys):
    assert run(["bench", "offline", *flags]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1
    assert reason in shown.err


def test_a_peer_that_cannot_be_measured_says_why(tiny_folder):
    """llama.cpp reads GGUF files alone, and needs a compiler to be installed."""
    peer = PEERS["llama-cpp-python"]
    folder = PeerModel(folder=tiny_folder, gguf=None)
    there = replace(peer, name="pytest")  # as if it was installed
    assert there.why_not(folder) == "reads GGUF files; name one with --model"
    assert there.why_not(PeerModel(folder=tiny_folder, gguf=tiny_folder / "x.gguf")) == ""


def test_bench_help_lists_both_benchmarks(capsys):
    assert run(["bench", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "offline" in shown
    assert "perplexity" in shown


def test_wrong_flags_are_found_before_torch_is_loaded():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from outrider.cli.main import run\n"
        "for flags in (['--batch', '0'], ['--peers', 'x'], ['--json', '/'], ['--model', 'x']):\n"
        "    assert run(['bench', 'offline', *flags]) == 1, flags\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
