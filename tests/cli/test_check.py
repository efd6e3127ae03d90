"""`outrider check` on a tiny pair: it passes, and it finds a fault that is injected."""

import dataclasses
import math

import pytest
from support.modules import write_mimo
from support.spoken import write_tokenizer
from support.v4_module import save_with_module

from outrider.cli.check.check_cases import Configuration, configurations
from outrider.cli.check.check_table import print_findings
from outrider.cli.check.compare_answers import first_difference
from outrider.cli.check.run_check import Finding
from outrider.cli.main import run
from outrider.config.draft_config import NO_DRAFT, DraftConfig
from outrider.frontend.outputs import Acceptance, CompletionOutput, Logprob
from outrider.ops.tree.verify import verify
from outrider.runtime.build_runner import assemble_runner


@pytest.fixture
def command(model_folder, draft_folder):
    fixed = ["--limit", "2", "--max-tokens", "6", "--max-context", "160", "--thorough"]
    return ["check", "--model", str(model_folder), "--draft", str(draft_folder), *fixed]


@pytest.mark.slow
def test_a_sound_engine_passes_with_all_tokens_compared(command, capsys):
    assert run(command) == 0
    shown = capsys.readouterr().out
    # Plain decoding, and chain or tree by two executors, overlapped or not; three samplings.
    # Each answers 2 prompts alone and together: 4 * 6 tokens.
    assert "27 configurations, 648 tokens compared: every token is that of plain" in shown
    assert all(
        word in shown for word in ("chain", "tree", "tape", "all logits processing", "tokens/round")
    )


@pytest.mark.slow
def test_without_thorough_the_usual_engine_is_checked_with_chains_and_trees(command, capsys):
    assert run([each for each in command if each != "--thorough"]) == 0
    shown = capsys.readouterr().out
    # Plain, chain and tree; two samplings; 2 prompts alone and together: 4 * 6 tokens.
    assert "6 configurations, 144 tokens compared: every token is that of plain" in shown
    assert "tape" not in shown


@pytest.mark.slow
def test_a_sound_engine_passes_under_load(command, capsys):
    few = ["--load", "8", "--max-tokens", "50", "--max-num-seqs", "6"]
    start = command[:5]  # the model and its draft
    assert run([*start, *few]) == 0
    shown = capsys.readouterr().out
    assert "16 answers, 800 tokens, 6 at a time: 0 differ from plain decoding" in shown
    assert " 0 preemptions" not in shown
    assert " 0 cached" not in shown


def test_every_finding_is_printed_before_the_next_configuration_runs(capfd):
    printed = []

    def findings():
        for name in ("chain", "tree"):
            configuration = Configuration(name=name, draft=NO_DRAFT, executor="eager", depth=0)
            yield Finding(
                configuration=configuration,
                sampling="greedy",
                num_tokens=8,
                mismatches=(),
                accept_length=1.5,
            )
            printed.append(capfd.readouterr().out)

    assert print_findings(findings())
    assert "chain" in printed[0]
    assert "tree" in printed[1]


@pytest.mark.slow
@pytest.mark.parametrize(("num", "configurations"), [(1, 27), (2, 15)])
def test_modules_inside_a_model_are_checked_as_chains_and_one_as_trees_too(
    tmp_path, capsys, num, configurations
):
    write_tokenizer(write_mimo(tmp_path, num=num))
    sizes = ["--limit", "1", "--max-tokens", "5", "--max-context", "160", "--thorough"]
    assert run(["check", "--model", str(tmp_path), "--draft", "mtp", *sizes]) == 0
    shown = capsys.readouterr().out
    assert f"{configurations} configurations" in shown
    assert ("tree" in shown) == (num == 1)


@pytest.mark.slow
@pytest.mark.parametrize("draft", ["ngram", "mtp"])
def test_a_target_that_checks_chains_only_is_checked_with_chains(tmp_path, capsys, draft):
    save_with_module(tmp_path)
    write_tokenizer(tmp_path)
    sizes = ["--limit", "1", "--max-tokens", "5", "--max-context", "160", "--thorough"]
    assert run(["check", "--model", str(tmp_path), "--draft", draft, *sizes]) == 0
    shown = capsys.readouterr().out
    assert "15 configurations" in shown
    assert "tree" not in shown


@pytest.mark.slow
@pytest.mark.parametrize("asked", [["--disable-cuda-graph"], ["--executor", "eager"]])
def test_only_the_executor_that_was_asked_for_is_checked(command, one_prompt, capsys, asked):
    """With --executor eager, it must not claim to have checked graphs."""
    assert run([*command, *one_prompt, *asked]) == 0
    shown = capsys.readouterr().out
    assert "15 configurations" in shown
    assert "tape" not in shown


def test_two_executors_are_refused(command, capsys):
    assert run([*command, "--executor", "tape", "--disable-cuda-graph"]) == 1
    assert "--disable-cuda-graph" in capsys.readouterr().err


@pytest.fixture
def one_prompt(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "the rider"}\n')
    return ["--prompts", str(path), "--max-tokens", "3"]


@pytest.mark.slow
def test_a_token_that_was_not_the_targets_is_found_and_fails(
    command, one_prompt, monkeypatch, capsys
):

    def mistaken(tree, choice, most_emitted):
        verify_result = verify(tree, choice, most_emitted)
        if tree.tokens.shape[1] == 1:
            return verify_result
        emitted = verify_result.emitted.clone()
        emitted[:, 0] = (emitted[:, 0] + 1) % 50
        return dataclasses.replace(verify_result, emitted=emitted)

    monkeypatch.setitem(assemble_runner.__kwdefaults__, "verifier", mistaken)
    assert run([*command, *one_prompt, "--steps", "2", "--executor", "eager"]) == 1
    shown = capsys.readouterr().out
    assert "chain, greedy, eager, overlap 0, prompt 0 alone: token 1 is " in shown
    assert "logit margin" in shown
    assert "answers differ" in shown


@pytest.mark.parametrize("draft", ["none", "auto"])
def test_without_a_drafter_there_is_nothing_to_check(model_folder, draft, capsys):
    assert run(["check", "--model", str(model_folder), "--draft", draft]) == 1
    assert "name one with --draft" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "chain", "tree"),
    [
        ({}, {}, {"steps": 3, "topk": 3, "nodes": 10}),
        ({"steps": 5}, {"steps": 5}, {"steps": 3, "topk": 3, "nodes": 10}),
        ({"steps": 2, "topk": 4}, {"steps": 2, "topk": 1}, {"steps": 2, "topk": 4}),
    ],
)
def test_what_was_asked_for_is_one_of_the_shapes_tried(asked, chain, tree):
    tried = configurations(DraftConfig(drafter="m", **asked), ("eager",))
    drafts = {each.name: each.draft for each in tried}
    assert drafts["chain"] == DraftConfig(drafter="m", adaptive=False, **chain)
    assert drafts["tree"] == DraftConfig(drafter="m", adaptive=False, **tree)


def completion(tokens, tops):
    return CompletionOutput(
        index=0,
        text="",
        token_ids=tokens,
        cumulative_logprob=0.0,
        logprobs=[
            {
                token: Logprob(logprob=value, rank=1, decoded_token="")
                for token, value in top.items()
            }
            for top in tops
        ],
        finish_reason="length",
        stop_reason=None,
        seed=0,
        acceptance=Acceptance(rounds=0, drafted=0, kept_per_position=[]),
    )


def test_the_margin_is_that_of_the_first_token_that_differs():
    plain = completion([3, 4], [{3: -0.1, 4: -2.0}, {4: -0.5, 5: -0.5 - 1e-6, 6: -7.0}])
    assert first_difference(plain, [3, 4]) == ()
    (near,) = first_difference(plain, [3, 5])
    assert (near.position, near.plain, near.other) == (1, 4, 5)
    assert math.isclose(near.margin, 1e-6, rel_tol=1e-3)
    (far,) = first_difference(plain, [9, 4])
    assert str(far) == "token 0 is 9 instead of 3, logit margin >= 1.9"
    (short,) = first_difference(plain, [3])
    assert (short.position, short.other) == (1, -1)
