"""Models whose layers differ from a Llama: speculation changes no token, however steps are run."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from support.embedded_prompts import embeds_mismatches
from support.engines import Shape, engine_of, make_submission, run_all
from support.matrix import MAX_TOKENS, PROMPTS, right_answer, sampling_of
from support.styled_families import STYLED_FAMILIES
from support.styled_models import mismatches
from support.tiny import tiny_model

from outrider.kv import compiled_attention
from outrider.wire.embedded_span import EmbeddedSpan

CASES = list(
    product(STYLED_FAMILIES, ["none", "ngram", "relative", "eagle3"], ["chain", "tree"], [0, 1])
)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(("family", "drafter", "tree", "is_hit"), CASES)
def test_drafts_change_no_token_of_layers_that_differ(models_of, family, drafter, tree, is_hit):
    seed = CASES.index((family, drafter, tree, is_hit))
    case = {"drafter": drafter, "tree": tree, "is_hit": is_hit, "seed": seed}
    assert not mismatches(models_of(family), **case)


def test_the_reference_decoder_has_the_plain_form_of_attention():
    """The form that transformers chooses ignores soft caps in some of its versions."""
    assert tiny_model("llama").config._attn_implementation == "eager"


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("change", [-1, 1], ids=["short", "long"])
def test_a_window_that_is_one_off_is_noticed(models_of, monkeypatch, change):
    attend = compiled_attention.attend_in_place

    def off_by_one(query, seen, *, layer, rule):
        other = replace(rule, window=rule.window + change)
        return attend(query, seen, layer=layer, rule=other)

    monkeypatch.setattr(compiled_attention, "attend_in_place", off_by_one)
    case = {"drafter": "relative", "tree": "tree", "is_hit": 0, "seed": 3}
    assert mismatches(models_of("ministral"), **case)


@pytest.mark.slow
def test_a_twin_is_accepted_completely(models_of):
    """Drafts see the same windows as the target: chunks, chains and catch-up."""
    models = models_of("ministral")
    engine = engine_of(models.target, Shape(step_tokens=40), models.draft("twin", "chain"))
    prompts = {
        f"r{i}": make_submission(f"r{i}", p, sampling_of("greedy", i), max_tokens=MAX_TOKENS)
        for i, p in enumerate(PROMPTS)
    }
    for output in run_all(engine, list(prompts.values())).values():
        assert output.last.progress.drafted
        assert output.last.progress.num_accepted >= output.last.progress.drafted


DRAFTS = ("none", "ngram", "relative", "eagle3")


@pytest.mark.usefixtures("poisoned_embeds")
@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    ("family", "drafter", "executor"),
    [
        (family, DRAFTS[index % 4], ("eager", "tape")[index // 4 % 2])
        for index, family in enumerate(STYLED_FAMILIES)
    ],
)
def test_any_embeddings_give_the_tokens_of_transformers(models_of, family, drafter, executor):
    models = models_of(family)
    shape = Shape(step_tokens=40, executor=executor, depth=1, pad=4)
    engine = engine_of(models.target, shape, models.draft(drafter, "tree"))
    assert embeds_mismatches(models.theirs, engine, page_size=shape.page_size) == []


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("family", ["gemma2", "granite"])
def test_embeddings_of_a_prompt_are_scaled_as_transformers_scales_them(models_of, family):
    models, prompt = models_of(family), PROMPTS[0]
    with torch.inference_mode():
        vectors = models.theirs.get_input_embeddings()(torch.tensor(prompt))
    span = EmbeddedSpan(first=0, width=vectors.shape[1], values=vectors.numpy().tobytes())
    plain = make_submission("r", prompt, sampling_of("greedy", 0), max_tokens=MAX_TOKENS)
    engine = engine_of(models.target, Shape(step_tokens=40), models.draft("relative", "tree"))
    assert engine._runner.find_tokens(span) == tuple(prompt)  # as the model reads them
    outputs = run_all(engine, [replace(plain, embeds=(span,))])
    assert outputs["r"].tokens == right_answer(models.theirs, "greedy", 0).tokens
