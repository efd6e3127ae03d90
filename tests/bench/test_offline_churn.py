"""`outrider bench offline --churn` from flags to table, file and picture, on a tiny model."""

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from support.block_heads import BlockVariant, write_block_head
from support.heads import write_head

from outrider.bench.churn import start_churn_load
from outrider.bench.churn.churn_peers import peer_ways
from outrider.bench.churn.churn_run import ChurnStep
from outrider.bench.churn.churn_work import ChurnWork
from outrider.bench.peers.churn_catalogue import CHURN_PEERS
from outrider.bench.peers.churn_child import read_task
from outrider.bench.peers.churn_peer import ChurnTask, PeerDraft, PeerLimits, PeerLoad
from outrider.bench.peers.peer_speculation import sglang_speculation, vllm_speculation
from outrider.bench.peers.run_churn_peer import run_churn_peer
from outrider.bench.peers.transformers_churn import TransformersChurn
from outrider.cli.bench_churn import ChurnFlags, read_churn_args
from outrider.cli.main import run
from outrider.models.model_config import read_config

LOAD = ["--requests", "11", "--max-tokens", "4", "--rows", "9", "--threads", "1"]
PLAIN = PeerDraft(folder="", kind="", steps=0, topk=0, nodes=1)


def bench(folder: Path, *flags: str) -> int:
    return run(["bench", "offline", "--churn", "--model", str(folder), *flags])


def write_prompts(folder: Path, *texts: str) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return path


def task_of(folder: Path, **fields: Any) -> ChurnTask:
    limits = PeerLimits(rows=2, max_tokens=4, context=32)
    loads = (PeerLoad(rows=1, requests=1, warm=1), PeerLoad(rows=2, requests=3, warm=2))
    prompts = ((4, 5, 6, 7), (8, 9), (10, 11, 12))
    values = {"engine": "transformers", "folder": str(folder), "dtype": "float32"}
    return ChurnTask(
        **{**values, "draft": PLAIN, "limits": limits, "prompts": prompts, "loads": loads} | fields
    )


@pytest.fixture(scope="module")
def outcome(
    tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, str, dict[str, Any]]:
    """N-gram drafts over two prompts: what was printed, the progress, the file."""
    place = tmp_path_factory.mktemp("churn")
    prompts = write_prompts(place, "abcabcabc", "hello")
    flags = ["--draft", "ngram", "--prompts", str(prompts), "--peers", "none"]
    with redirect_stdout(io.StringIO()) as shown, redirect_stderr(io.StringIO()) as progress:
        assert bench(tiny_folder, *LOAD, *flags, "--json", str(place / "out.json")) == 0
    return shown.getvalue(), progress.getvalue(), json.loads((place / "out.json").read_text())


@pytest.mark.slow
def test_every_way_answers_all_requests(outcome):
    _, _, written = outcome
    assert [run["way"] for run in written["runs"]] == ["plain", "fixed", "adaptive"]
    for each in written["runs"]:
        tokens = each["tokens"]
        assert tokens["emitted"] == 11 * 4
        assert tokens["rounds"] + tokens["accepted"] == 11 * 3  # the prompt gives the first token
        assert each["way"] != "fixed" or tokens["drafted"] > 0
        assert each["way"] != "plain" or tokens["drafted"] == 0
        prompt_tokens = sum(step["prompt_tokens"] for step in each["steps"])
        assert prompt_tokens == 6 * 9 + 5 * 5  # the two prompts in turn; no prefix is cached


def test_ratios_are_to_plain_decoding_of_as_many_rows(outcome):
    _, _, written = outcome
    speeds = {(run["rows"], run["way"]): run["tokens_per_s"] for run in written["runs"]}
    for each in written["runs"]:
        plain = speeds[each["rows"], "plain"]
        assert each["to_plain"] == pytest.approx(each["tokens_per_s"] / plain)


def test_the_file_says_which_steps_the_time_went_to(outcome):
    _, _, written = outcome
    for each in written["runs"]:
        kinds = each["kinds"]
        # A step reads eight prompts, so the ninth is read beside rows that decode.
        assert kinds.keys() == {"prompts", "mixed", "decode"}
        assert sum(kind["steps"] for kind in kinds.values()) == len(each["steps"])
        assert 0 < sum(kind["share_of_time"] for kind in kinds.values()) <= 1.01
        assert 0 < each["time"]["occupancy"] <= 1
        assert each["eager_rate"] == 1.0  # a CPU captures nothing


def test_the_table_fits_in_a_hundred_columns_and_progress_needs_no_terminal(outcome):
    shown, progress, _ = outcome
    for word in ("to plain", "tokens/round", "accepted", "eager steps", "device busy", "mixed"):
        assert word in shown
    assert "11 requests, 4 new tokens each" in shown
    table = shown[shown.index(" way") :].splitlines()
    assert max(map(len, table)) <= 100
    assert progress.splitlines() == [
        f"{way}, 9 at a time" for way in ("plain", "fixed", "adaptive")
    ]


@pytest.mark.slow
def test_every_number_of_rows_is_in_the_picture(tiny_folder, tmp_path):
    prompts, picture = write_prompts(tmp_path, "abcabc"), tmp_path / "out.png"
    flags = ["--draft", "ngram", "--prompts", str(prompts), "--plot", str(picture)]
    assert bench(tiny_folder, *LOAD, "--rows", "1,2", *flags) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_steps_are_named_by_what_they_run():
    def kind(*, decode: int, prompt: int) -> str:
        times = {"emitted": 1, "is_eager": False, "busy_s": 0.1, "submit_s": 0.0}
        return ChurnStep(decode_tokens=decode, prompt_tokens=prompt, **times).kind

    assert kind(decode=3, prompt=0) == "decode"
    assert kind(decode=3, prompt=5) == "mixed"
    assert kind(decode=0, prompt=5) == "prompts"


def test_a_peer_pads_its_batches_and_gives_every_answer_all_tokens(tiny_folder):
    task = task_of(tiny_folder)
    peer = TransformersChurn(task)
    assert peer.answer(task.prompts, rows=2) == 3 * 4  # a batch of two, and one of one
    peer.close()


def test_a_task_survives_the_way_to_the_process_of_a_peer(tiny_folder):
    task = task_of(tiny_folder)
    assert read_task(json.loads(json.dumps(asdict(task)))) == task


@pytest.mark.slow
def test_a_peer_runs_in_a_process_of_its_own_and_a_failure_is_a_result(tiny_folder, tmp_path):
    assert [speed > 0 for speed in run_churn_peer(task_of(tiny_folder))] == [True, True]
    with pytest.raises(RuntimeError, match=r"ended with 1: .+"):
        list(run_churn_peer(task_of(tmp_path)))  # a folder without a model


@pytest.mark.slow
def test_a_peer_stands_beside_ours_in_table_and_file(tiny_folder, tmp_path, capsys):
    prompts, target = write_prompts(tmp_path, "abc", "hello"), tmp_path / "out.json"
    flags = ["--ways", "plain", "--prompts", str(prompts), "--peers", "transformers"]
    assert bench(tiny_folder, *LOAD, *flags, "--json", str(target)) == 0
    peers = json.loads(target.read_text())["peers"]
    assert [(peer["engine"], peer["way"], peer["rows"]) for peer in peers] == [
        ("transformers", "plain", 9)
    ]
    assert all(peer["to_plain"] > 0 and not peer["error"] for peer in peers)
    assert "transformers plain" in capsys.readouterr().out


WRONG = [
    (["--churn", "--batch", "1"], "--rows"),
    (["--churn", "--quick"], "do not go with --churn"),
    (["--rows", "8"], "goes with --churn"),
    (["--plot", "x.png"], "goes with --churn"),
    (["--churn", "--ways", "fast"], "choose from plain, fixed, adaptive"),
    (["--churn", "--rows", "0"], "such as 1,8,32"),
    (["--churn", "--peers", "llama"], "use vllm, sglang, transformers"),
    (["--churn", "--dtype", "float32,int8"], "one --dtype"),
    (["--churn", "--draft", "none"], "nothing drafts"),
    (["--churn", "--ways", "plain", "--plot", "x.jpg"], "x.png"),
    (["--churn", "--max-tokens", "0"], "--max-tokens"),
]


@pytest.mark.parametrize(
    ("ways", "steps"), [("plain", [0]), ("adaptive", [3]), ("plain,fixed", [0, 3])]
)
def test_peers_run_in_the_ways_that_ours_does(tiny_folder, tmp_path, ways, steps):
    head = write_head(tmp_path, read_config(tiny_folder), layers=(0, 1))
    args = read_churn_args(
        ChurnFlags(churn=True, ways=ways, draft=str(head), steps=3, topk=1, nodes=4),
        str(tiny_folder),
        dtypes=(),
        max_tokens=4,
        prompts=None,
        peers="none",
    )
    peers = replace(args, peers=(CHURN_PEERS["vllm"],))
    assert [draft.steps for _, draft in peer_ways(peers)] == steps


DFLASH_4 = {"method": "dflash", "model": "HEAD", "num_speculative_tokens": 4}
BLOCK_HEADS = {
    "dflash": (BlockVariant(layers=(1,)), DFLASH_4, ("DFLASH", 5)),
    "dflash2": (BlockVariant(layers=(1,), taps=2, markov_rank=5), DFLASH_4, ("DFLASH", 5)),
    "dspark": (
        BlockVariant(layers=(1,), is_next=True, markov_rank=6),
        {"method": "dspark", "model": "HEAD", "num_speculative_tokens": 5},
        ("DSPARK", 6),
    ),
}


@pytest.mark.parametrize("kind", BLOCK_HEADS)
def test_peers_draft_with_heads_of_blocks_in_their_own_words(tiny_folder, tmp_path, kind):
    variant, vllm, (algorithm, num_tokens) = BLOCK_HEADS[kind]
    dialect = "DeepSpec" if kind == "dspark" else "z-lab"
    write_block_head(tmp_path, read_config(tiny_folder), variant, dialect=dialect)
    args = read_churn_args(
        ChurnFlags(churn=True, ways="fixed", draft=str(tmp_path)),
        str(tiny_folder),
        dtypes=(),
        max_tokens=4,
        prompts=None,
        peers="none",
    )
    ways = peer_ways(replace(args, peers=tuple(CHURN_PEERS.values())))
    assert [peer.name for peer, _ in ways] == ["vllm", "sglang"]
    (_, draft), _ = ways
    assert draft.kind == kind
    assert vllm_speculation(draft) == vllm | {"model": str(tmp_path)}
    assert sglang_speculation(draft) == {
        "speculative_algorithm": algorithm,
        "speculative_draft_model_path": str(tmp_path),
        "speculative_num_draft_tokens": num_tokens,  # of a chain, the root included
    }


def test_peers_draft_with_other_heads_as_before():
    eagle = PeerDraft(folder="HEAD", kind="eagle3", steps=3, topk=2, nodes=6)
    assert vllm_speculation(eagle) == {
        "method": "eagle3",
        "model": "HEAD",
        "num_speculative_tokens": 3,
    }
    assert sglang_speculation(eagle)["speculative_algorithm"] == "EAGLE3"
    assert sglang_speculation(eagle)["speculative_num_draft_tokens"] == 6
    parallel = replace(eagle, kind="peagle")
    assert vllm_speculation(parallel)["parallel_drafting"]
    assert not CHURN_PEERS["sglang"].can_draft("peagle")  # it has no such drafter
    assert vllm_speculation(PLAIN) is None
    assert sglang_speculation(PLAIN) == {}


@pytest.mark.slow
def test_a_benchmark_that_is_ended_keeps_what_it_measured(tiny_folder, tmp_path, monkeypatch):
    def end(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(start_churn_load, "print_churn", end)
    prompts, target = write_prompts(tmp_path, "abc"), tmp_path / "out.json"
    flags = ["--ways", "plain", "--prompts", str(prompts), "--peers", "none"]
    assert bench(tiny_folder, *LOAD, *flags, "--json", str(target)) != 0
    (measured,) = json.loads(target.read_text())["runs"]
    assert measured["tokens_per_s"] > 0


def test_a_load_of_few_rows_has_fewer_requests():
    work = ChurnWork(rows=(1, 8, 32), requests=256, per_row=16, answer=4, ways=("plain",))
    assert [work.num_requests(rows) for rows in work.rows] == [16, 128, 256]
    assert [work.num_warm(rows) for rows in work.rows] == [4, 32, 64]
    assert work.most_rows == 32


@pytest.mark.parametrize(("flags", "reason"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_flag_of_the_load_is_answered_with_one_line(flags, reason, capsys):
    assert run(["bench", "offline", *flags]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert reason in shown.err
