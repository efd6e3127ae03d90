"""`outrider doctor` on a tiny target, and the explanations of its probe."""

import json
import re
import shutil

import pytest
import tokenizers
from rich.console import Console
from support.heads import write_head

from outrider.cli.doctor import WIDTH, _print_probed
from outrider.cli.doctor_probe import Probe, ProbedModel, explain
from outrider.cli.main import run
from outrider.hub.learn_folder import LearnedVersion, LearnFolder


def test_a_good_head_is_described(target, tmp_path, capsys):
    write_head(tmp_path, target.config, layers=(1, 3), norm_output=True)
    assert run(["doctor", str(tmp_path), "--model", str(target.folder), "--no-probe"]) == 0
    lines = capsys.readouterr().out.splitlines()
    facts = dict(line.split(maxsplit=1) for line in lines if line[:1].isalpha())
    assert facts["dialect"].strip() == "SGLang"
    assert facts["captures"].strip() == "after 1, 3 of 3 layers"
    assert facts["aux"].strip() == "2 x 32 = 64 wide"
    assert facts["state"].startswith("32 wide")
    assert facts["vocabulary"].strip() == "44 of 67 tokens (66%)"
    assert facts["variant"].strip() == "norm_output"
    assert any(line.startswith("the head fits") for line in lines)


def test_a_broken_head_lists_all_problems_and_fails(target, tmp_path, capsys):
    write_head(tmp_path, target.config)
    path = tmp_path / "config.json"
    changes = {"vocab_size": 68, "attention_bias": True}
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    assert run(["doctor", str(tmp_path), "--model", str(target.folder)]) == 1
    out = capsys.readouterr().out
    assert "problem: the head is for a vocabulary of 68" in out
    assert "problem: the head lacks tensors (4): " in out
    assert "problem: the head has mis-shaped tensors (1): t2d [67] instead of [68]" in out


def test_the_probe_drafts_real_prompts_and_explains_a_random_head(target, tmp_path, capsys):
    head = write_head(tmp_path / "head", target.config)
    model = shutil.copytree(target.folder, tmp_path / "model")
    letters = tokenizers.models.BPE(vocab={c: i for i, c in enumerate("abcdefgh ")}, merges=[])
    tokenizers.Tokenizer(letters).save(str(model / "tokenizer.json"))
    command = ["doctor", str(head), "--model", str(model)]
    assert run([*command, "--dtype", "float32", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"probe: \d+ rounds", out)
    assert re.search(r"^ *q_proj, k_proj, v_proj +\d+ +float32 *$", out, re.MULTILINE)
    assert re.search(r"^ *lm_head +1 +float32 *$", out, re.MULTILINE)
    assert re.search(r"^ +4 +\d+ +\d+\.\d% +\d+\.\d%", out, re.MULTILINE)  # the last position
    assert "1. Capture layers off by one" in out
    assert "not checked" not in out
    assert run([*command, "--device", "nowhere"]) == 1
    assert "unknown device 'nowhere'" in capsys.readouterr().err


def test_a_gpu_says_which_check_it_leaves_out(tmp_path, capsys):
    rounds = Probe(rounds=10, accepted_per_position=(8, 4))
    found = ProbedModel(probe=rounds, weights=(), device="cuda:0")
    _print_probed(Console(width=WIDTH), found, tmp_path, "head", "auto")
    assert "that check runs on a CPU: add --device cpu" in " ".join(capsys.readouterr().out.split())


def test_a_learn_folder_is_listed_and_its_head_in_use_examined(target, tmp_path, capsys):
    start = write_head(tmp_path / "head", target.config)
    learned = LearnFolder(path=tmp_path / "learned", start=start)
    facts = LearnedVersion(
        version=1, parent=0, steps=128, texts=9, acceptance_before=1.5, acceptance_after=1.75
    )
    with learned.new_version(facts) as head:
        shutil.copytree(start, head)
    command = ["doctor", str(learned.path), "--model", str(target.folder), "--no-probe"]
    learned.use(1)
    assert run(command) == 0
    out = capsys.readouterr().out
    assert re.search(r"1 +0 +128 +9 +1\.500 +1\.750", out)
    assert "version 1 is in use" in out
    assert "the head fits" in out
    learned.use(0)
    assert run(command) == 0
    assert "the head before learning" in capsys.readouterr().out


def test_a_missing_folder_is_refused_in_one_line(target, capsys):
    assert run(["doctor", "/nowhere", "--model", str(target.folder)]) == 1
    assert capsys.readouterr().err == (
        "error: there is no file or folder /nowhere; check the path\n"
    )


def test_rates_are_of_all_rounds_and_of_rounds_that_reached_the_position():
    probe = Probe(rounds=100, accepted_per_position=(60, 30, 0, 0))
    assert list(probe.rates()) == [(0.6, 0.6), (0.3, 0.5), (0.0, 0.0), (0.0, 0.0)]
    assert probe.accept_length == 1.9


@pytest.mark.parametrize("accepted", [(0, 0), (3, 1)])
def test_first_drafts_that_are_never_accepted_are_explained(accepted):
    text = "\n".join(explain(Probe(rounds=100, accepted_per_position=accepted)))
    for cause in ("Capture layers off by one", "Another target", "norm_before_residual", "rope"):
        assert cause in text


def test_a_working_head_gets_its_accept_length():
    assert list(explain(Probe(rounds=10, accepted_per_position=(6, 4)))) == [
        "mean accept length 2.00 tokens per round"
    ]
