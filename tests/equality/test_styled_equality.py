"""Models whose layers differ from a Llama: speculation changes no token, however steps are run."""

import random
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
import torch
from support.engines import Shape, engine_of, make_submission, run_all
from support.heads import write_head
from support.matrix import MAX_TOKENS, PROMPTS, TREES, right_answer, sampling_of
from support.styled_families import STYLED_FAMILIES
from support.tiny import save_tiny

from outrider.kv import compiled_attention
from outrider.models.decoder_loader import load_decoder
from outrider.models.eagle.head_loader import load_head
from outrider.models.standalone_draft import StandaloneDraft
from outrider.runtime.draft_kinds import ModelDraft, NgramDraft, NoDraft
from outrider.wire.embedded_span import EmbeddedSpan

CPU = torch.device("cpu")


class StyledModels:
    """A target of a family, and what drafts for it."""

    def __init__(self, family, root):
        self.theirs = save_tiny(family, root / "target")
        save_tiny(family, root / "relative", disturbance=0.02)
        self.target, relative = (
            load_decoder(root / name, dtype="float32", device=CPU)
            for name in ("target", "relative")
        )
        head = write_head(root / "head", self.target.config, own_embedding=False)
        vocab = self.target.config.vocab_size
        self.models = {
            "relative": StandaloneDraft(relative, target_vocab=vocab),
            "twin": StandaloneDraft(self.target, target_vocab=vocab),
            "eagle3": load_head(
                head,
                target=self.target,
                target_folder=root / "target",
                dtype="float32",
                device=CPU,
            ),
        }

    def draft(self, drafter, tree):
        budget = TREES[tree]
        if drafter == "none":
            return NoDraft()
        if drafter == "ngram":
            return NgramDraft(budget=budget, min_match=1, max_match=3)
        return ModelDraft(model=self.models[drafter], budget=budget)


@pytest.fixture(scope="session")
def models_of(tmp_path_factory):
    return cache(lambda family: StyledModels(family, tmp_path_factory.mktemp("styled")))


def mismatches(models, *, drafter, tree, is_hit, seed):
    """The prompts whose tokens or logprobs are not those of the reference decoder."""
    rng = random.Random(seed)
    sampling = rng.choice(["greedy", "sampled", "warped"])
    shape = Shape(
        page_size=rng.choice([1, 4, 16]),
        pad=rng.choice([1, 4]),
        executor=rng.choice(["eager", "tape"]),
        depth=rng.choice([0, 1]),
        step_tokens=4 * TREES[tree].nodes + rng.choice([1, 7, 60]),
    )
    engine = engine_of(models.target, shape, models.draft(drafter, tree))
    submissions = [
        make_submission(f"r{i}", prompt, sampling_of(sampling, i), max_tokens=MAX_TOKENS)
        for i, prompt in enumerate(PROMPTS)
    ]
    outputs = [run_all(engine, submissions) for _ in range(1 + is_hit)][-1]
    found = []
    for i in range(len(PROMPTS)):
        right, got = right_answer(models.theirs, sampling, i), outputs[f"r{i}"]
        is_far = not torch.allclose(
            torch.tensor(got.logprobs), torch.tensor(right.logprobs), atol=1e-4, rtol=0
        )
        if got.tokens != right.tokens or is_far:
            found.append(f"prompt {i}: {got.tokens} instead of {right.tokens}")
    return found


CASES = list(
    product(STYLED_FAMILIES, ["none", "ngram", "relative", "eagle3"], ["chain", "tree"], [0, 1])
)


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize(("family", "drafter", "tree", "is_hit"), CASES)
def test_drafts_change_no_token_of_layers_that_differ(models_of, family, drafter, tree, is_hit):
    seed = CASES.index((family, drafter, tree, is_hit))
    case = {"drafter": drafter, "tree": tree, "is_hit": is_hit, "seed": seed}
    assert not mismatches(models_of(family), **case)


@pytest.mark.parametrize("change", [-1, 1], ids=["short", "long"])
def test_a_window_that_is_one_off_is_noticed(models_of, monkeypatch, change):
    attend = compiled_attention.attend_in_place

    def off_by_one(query, seen, *, layer, rule):
        other = replace(rule, window=rule.window + change)
        return attend(query, seen, layer=layer, rule=other)

    monkeypatch.setattr(compiled_attention, "attend_in_place", off_by_one)
    case = {"drafter": "relative", "tree": "tree", "is_hit": 0, "seed": 3}
    assert mismatches(models_of("ministral"), **case)


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


@pytest.mark.parametrize("family", ["gemma2", "granite"])
def test_embeddings_of_a_prompt_are_scaled_as_transformers_scales_them(models_of, family):
    models, prompt = models_of(family), PROMPTS[0]
    with torch.inference_mode():
        vectors = models.theirs.get_input_embeddings()(torch.tensor(prompt))
    span = EmbeddedSpan(first=0, width=vectors.shape[1], values=vectors.numpy().tobytes())
    plain = make_submission("r", prompt, sampling_of("greedy", 0), max_tokens=MAX_TOKENS)
    engine = engine_of(models.target, Shape(step_tokens=40), models.draft("relative", "tree"))
    outputs = run_all(engine, [replace(plain, embeds=(span,))])
    assert outputs["r"].tokens == right_answer(models.theirs, "greedy", 0).tokens
