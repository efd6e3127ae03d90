"""`outrider check` on a tiny pair: it passes, and it sees a fault that is put in on purpose."""

import dataclasses
import math

import pytest

import outrider.runtime.program
from outrider.api.check.cases import configurations
from outrider.api.check.compare import first_difference
from outrider.api.cli import run
from outrider.api.outputs import Acceptance, CompletionOutput, Logprob
from outrider.config.draft import DraftConfig


@pytest.fixture
def command(model_folder, draft_folder):
    fixed = ["--limit", "2", "--max-tokens", "10", "--max-context", "160"]
    return ["check", "--model", str(model_folder), "--draft", str(draft_folder), *fixed]


def test_a_sound_engine_passes_with_all_tokens_compared(command, capsys):
    assert run(command) == 0
    shown = capsys.readouterr().out
    # Plain decoding, and chain or tree by two executors, overlapped or not; under three laws.
    # Each answers 2 prompts alone and together: 4 * 10 tokens.
    assert "27 configurations, 1080 tokens compared: every token is that of plain" in shown
    assert all(word in shown for word in ("chain", "tree", "tape", "every warp", "tokens/round"))


def test_one_draft_too_many_is_found_and_fails(command, monkeypatch, capsys):
    verify = outrider.runtime.program.verify

    def credulous(tree, choice):
        verdict = verify(tree, choice)
        if tree.tokens.shape[1] == 1:
            return verdict
        emitted = verdict.emitted.clone()
        emitted[:, 0] = (emitted[:, 0] + 1) % 50
        return dataclasses.replace(verdict, emitted=emitted)

    monkeypatch.setattr(outrider.runtime.program, "verify", credulous)
    assert run([*command, "--steps", "2"]) == 1
    shown = capsys.readouterr().out
    assert "chain, greedy, eager, overlap 0, prompt 0 alone: token 1 is " in shown
    assert "logit margin" in shown
    assert "answers differ" in shown


@pytest.mark.parametrize("draft", ["none", "auto"])
def test_without_a_drafter_there_is_nothing_to_check(model_folder, draft, capsys):
    assert run(["check", "--model", str(model_folder), "--draft", draft]) == 1
    assert "name one with --draft" in capsys.readouterr().err


def test_prompts_may_come_from_a_file(command, tmp_path, capsys):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "the rider"}\n')
    assert run([*command, "--prompts", str(path), "--topk", "2"]) == 0
    assert "540 tokens compared" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("draft", "chain", "tree"),
    [
        (DraftConfig(drafter="m"), (None, 1), (3, 3)),
        (DraftConfig(drafter="m", steps=5), (5, 1), (3, 3)),
        (DraftConfig(drafter="m", steps=2, topk=4, nodes=9), (2, 1), (2, 4)),
    ],
)
def test_what_was_asked_for_is_one_of_the_shapes_tried(draft, chain, tree):
    tried = {each.name: each.draft for each in configurations(draft, has_tape=False)}
    assert draft in (tried["chain"], tried["tree"]) or tried["chain"] == DraftConfig(
        drafter="m", topk=1
    )
    sizes = {name: (each.steps, each.topk) for name, each in tried.items()}
    assert sizes["tree"] == tree
    assert sizes["chain"][0] == (chain[0] or "auto")


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
