"""The shipped head: the default model drafts with it, unless --draft says otherwise."""

from dataclasses import astuple
from pathlib import Path

import pytest

from outrider import LLM, SamplingParams
from outrider.cli.main import run
from outrider.config.draft_config import DraftConfig, fit_usual
from outrider.hub.aliases import ALIASES, DEFAULT_ALIAS
from outrider.hub.shipped_heads import shipped_head

PROMPTS = [
    "Explain in a few sentences why the sky is blue.",
    "A shop sells pens at 3 dollars each. How much do 7 pens cost?",
    "Write a Python function that reverses a string.",
]
LIMIT_MB = 25


@pytest.fixture(scope="module")
def answers(smollm2_folder: Path):
    """The same questions with the head and without it, greedy and sampled."""
    del smollm2_folder  # the model is cached now, so the alias needs no network
    params = [
        SamplingParams(temperature=temperature, seed=11, max_tokens=40)
        for temperature in (0.0, 1.0)
    ]
    found = {}
    for draft in ("auto", "none"):
        # Adaptive drafting would depend on the speed of the machine.
        config = DraftConfig(drafter=draft, adaptive=False)
        llm = LLM(DEFAULT_ALIAS, draft=config, device="cpu", max_model_len=256, max_num_seqs=2)
        chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
        found[draft] = [llm.chat(chats, each) for each in params]
    return found


def tokens(outputs):
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.slow
def test_answers_are_equal_with_and_without_the_shipped_head(answers):
    for drafted, plain in zip(answers["auto"], answers["none"], strict=True):
        assert tokens(drafted) == tokens(plain)


@pytest.mark.slow
def test_the_shipped_head_is_used_and_its_drafts_are_accepted(answers):
    greedy, _sampled = answers["auto"]
    rounds = sum(output.outputs[0].acceptance.rounds for output in greedy)
    accepted = sum(output.outputs[0].acceptance.kept for output in greedy)
    assert 1 + accepted / rounds > 1.9  # a chain of three; four have 2.85 on all dev prompts
    assert not any(output.outputs[0].acceptance.drafted for output in answers["none"][0])


def test_every_name_of_the_default_model_has_the_head_and_no_other_model_has():
    names = ["smollm2", "SmolLM2", DEFAULT_ALIAS.upper(), ALIASES[DEFAULT_ALIAS].hub_id]
    assert shipped_head(DEFAULT_ALIAS) is not None
    assert {shipped_head(name) for name in names} == {shipped_head(DEFAULT_ALIAS)}
    others = [name for name in ALIASES if ALIASES[name].name != DEFAULT_ALIAS]
    assert all(shipped_head(name) is None for name in [*others, "./somewhere"])


def test_the_shipped_head_is_small_and_its_card_names_its_origin():
    head = shipped_head(DEFAULT_ALIAS)
    sizes = sum(path.stat().st_size for path in head.folder.iterdir())
    assert sizes < LIMIT_MB * 1e6
    assert "Apache-2.0" in (head.folder / "README.md").read_text()


def test_what_is_given_replaces_what_the_shipped_head_is_fastest_with():
    from outrider.frontend.find_drafter import find_drafter
    from outrider.hub.download_bars import BarReporter

    head = shipped_head(DEFAULT_ALIAS)

    def found(**given: int | str) -> DraftConfig:
        config = DraftConfig(**given)
        place = {"model": DEFAULT_ALIAS, "folder": Path(DEFAULT_ALIAS)}
        return find_drafter(config, reporter=BarReporter(), **place)

    def sizes(config: DraftConfig, dtype: str) -> tuple[int | str, ...]:
        fitted = fit_usual(config, dtype, on_cpu=True)
        return fitted.steps, fitted.topk, fitted.nodes

    usual, chain = found(), found(steps=3)
    assert usual.drafter == chain.drafter == str(head.folder)
    assert sizes(usual, "float32") == sizes(usual, "bfloat16") == astuple(head.usual.tree)
    assert sizes(usual, "packed") == sizes(usual, "int8") == astuple(head.usual.narrow)
    assert sizes(chain, "float32") == sizes(chain, "packed") == (3, "auto", "auto")

    def lookups(config: DraftConfig) -> list[str]:
        places = [("float32", True), ("packed", True), ("float32", False)]
        return [fit_usual(config, dtype, on_cpu=on_cpu).lookup for dtype, on_cpu in places]

    assert lookups(usual) == ["suffix", "none", "none"]
    alone, both = found(drafter="head"), found(drafter="head+ngram")
    assert alone.drafter == both.drafter == usual.drafter
    assert lookups(alone) == ["none"] * 3
    assert lookups(both) == ["ngram"] * 3


def test_the_doctor_finds_no_problem_with_the_shipped_head(smollm2_folder, capsys):
    head = shipped_head(DEFAULT_ALIAS)
    assert run(["doctor", str(head.folder), "--model", str(smollm2_folder), "--no-probe"]) == 0
    assert "problem" not in capsys.readouterr().out
