"""Embeddings in place of tokens: the answers of transformers, and of the ids they are of."""

from dataclasses import replace

import pytest
import torch
from support.embedded_prompts import (
    GREEDY,
    MAX_TOKENS,
    embeds_mismatches,
    embeds_reference,
    embeds_submission,
    random_embeds,
    table_of,
)
from support.engines import Shape, engine_of, make_submission, run_all
from support.matrix import PROMPTS, TREES, sampling_of

from outrider.runtime.runner import Runner
from outrider.step.input_embeds import EmbedsBuffer

pytestmark = pytest.mark.usefixtures("poisoned_embeds")
# Every drafter, with the tree that it drafts. Modules draft chains alone.
DRAFTS = {
    "none": "chain",
    "ngram": "tree",
    "suffix": "wide",
    "relative+suffix": "tree",
    "relative": "wide",
    "twin": "tree",
    "eagle": "chain",
    "eagle3": "tree",
    "eagle3-mla": "tree",
    "dflash": "tree",
    "mixed": "chain",
    "dflash2": "tree",
    "dspark": "tree",
    "peagle": "tree",
    "pard": "tree",
    "medusa": "tree",
    "mtp": "tree",
    "modules": "chain",
}
SIZES = [(4, 1), (1, 7), (16, 60)]  # tokens of a page, and those of a step beside all trees


def every_way(test):
    """Every drafter, executor, depth, padding and chunk size; the slow tests run all pairs."""
    for name, values in (
        ("drafter", DRAFTS),
        ("executor", ["eager", "tape"]),
        ("depth", [0, 1]),
        ("pad", [1, 4]),
        ("sizes", SIZES),
    ):
        test = pytest.mark.parametrize(name, values)(test)
    return pytest.mark.fast_cases(1)(test)


def shape_of(drafter, executor, depth, pad, sizes):
    page, extra = sizes
    nodes = 1 if drafter == "none" else TREES[DRAFTS[drafter]].nodes
    return Shape(
        page_size=page, pad=pad, executor=executor, depth=depth, step_tokens=4 * nodes + extra
    )


def mismatches(models, drafter, shape):
    engine = engine_of(models.target, shape, models.draft(drafter, TREES[DRAFTS[drafter]]))
    return embeds_mismatches(models.theirs, engine, page_size=shape.page_size)


@every_way
def test_any_embeddings_give_the_tokens_of_transformers(
    models, drafter, executor, depth, pad, sizes
):
    shape = shape_of(drafter, executor, depth, pad, sizes)
    assert mismatches(models, drafter, shape) == []


def test_a_draft_model_drafts_after_any_embeddings(models):
    """It reads ids where the target reads embeddings; `run_all` asserts that it did not fail."""
    engine = engine_of(models.target, Shape(), models.draft("relative", TREES["chain"]))
    vectors = random_embeds(models.theirs, 5, seed=6)
    answer = run_all(engine, [embeds_submission("a", vectors)])["a"]
    assert answer.last.progress.drafted > 0
    assert answer.tokens == embeds_reference(models.theirs, vectors)[0]


@pytest.mark.slow
def test_latents_take_embeddings_too(targets):
    shape = Shape(pad=4, executor="tape", depth=1, step_tokens=40)
    assert mismatches(targets["deepseek-v3"], "eagle3", shape) == []


@pytest.mark.slow
def test_a_stale_embedding_slot_is_noticed(models, monkeypatch):
    """A mistake, put back: a capture reads what an earlier step staged."""
    stage, staged = EmbedsBuffer.stage, set()

    def once(self, chunks, shape):
        if shape not in staged:
            staged.add(shape)
            stage(self, chunks, shape)

    monkeypatch.setattr(EmbedsBuffer, "stage", once)
    engine = engine_of(models.target, Shape(executor="tape", prefix_cache=False))
    for seed, is_right in ((1, True), (2, False)):
        vectors = random_embeds(models.theirs, 9, seed=seed)
        answer = run_all(engine, [embeds_submission("a", vectors)])["a"]
        assert (answer.tokens == embeds_reference(models.theirs, vectors)[0]) is is_right


@every_way
def test_embeddings_of_ids_are_the_ids(models, drafter, executor, depth, pad, sizes):
    """Tokens, log-probabilities and drafts, with the sampling of every row its own."""
    draft = models.draft(drafter, TREES[DRAFTS[drafter]])
    shape, table = shape_of(drafter, executor, depth, pad, sizes), table_of(models.theirs)
    outputs = []
    for is_embedded in (False, True):
        submissions = []
        for index, prompt in enumerate(PROMPTS):
            own, name = replace(sampling_of("mixed", index), trace=True), f"r{index}"
            submissions.append(
                embeds_submission(name, table[torch.tensor(prompt)], own)
                if is_embedded
                else make_submission(name, prompt, own, max_tokens=MAX_TOKENS)
            )
        outputs.append(run_all(engine_of(models.target, shape, draft), submissions))
    for name, expected in outputs[0].items():
        got = outputs[1][name]
        assert (got.tokens, got.logprobs) == (expected.tokens, expected.logprobs)
        assert got.rounds == expected.rounds  # what was drafted, and what was accepted
        assert got.last.progress == expected.last.progress
    drafted = sum(len(each.rounds) for each in outputs[0].values())
    assert drafted or drafter == "none"


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["ngram", "relative", "eagle3"])
def test_embeddings_of_ids_that_are_not_recognised_are_noticed(models, monkeypatch, drafter):
    """A mistake, put back: drafters read another token where an embedding is."""
    table, prompt = table_of(models.theirs), PROMPTS[0] * 3
    traced = replace(GREEDY, trace=True)
    asked = embeds_submission("a", table[torch.tensor(prompt)], traced)
    draft, rounds = models.draft(drafter, TREES["chain"]), []
    for is_mistaken in (False, True):
        if is_mistaken:
            monkeypatch.setattr(Runner, "find_tokens", lambda self, span: (-1,) * len(span))
        output = run_all(engine_of(models.target, Shape(), draft), [asked])["a"]
        assert output.tokens == embeds_reference(models.theirs, table[torch.tensor(prompt)])[0]
        rounds.append(output.rounds)
    assert rounds[0] != rounds[1]


@pytest.mark.slow
def test_prefixes_are_shared_by_content_alone(models):
    engine = engine_of(models.target, Shape(page_size=4))
    first = random_embeds(models.theirs, 12, seed=1)
    other = torch.cat([first[:6], random_embeds(models.theirs, 6, seed=9)])
    for vectors, num_cached in ((first, 0), (other, 4), (first, 8), (other, 8)):
        output = run_all(engine, [embeds_submission("a", vectors)])["a"]
        assert output.last.progress.cached == num_cached
        assert output.tokens == embeds_reference(models.theirs, vectors)[0]


@pytest.mark.slow
def test_a_preempted_request_keeps_its_embeddings(models):
    engine = engine_of(models.target, Shape(kv_tokens=48, page_size=4, prefix_cache=False))
    prompts = {f"r{seed}": random_embeds(models.theirs, 12, seed=seed) for seed in range(3)}
    wanted = [
        replace(
            embeds_submission(*each), limits=replace(embeds_submission(*each).limits, max_tokens=20)
        )
        for each in prompts.items()
    ]
    outputs = run_all(engine, wanted)
    assert sum(each.last.progress.preemptions for each in outputs.values()) > 0
    for name, vectors in prompts.items():
        assert outputs[name].tokens == embeds_reference(models.theirs, vectors, max_tokens=20)[0]


def test_penalties_do_not_see_the_placeholder_of_an_embedding(models):
    vectors = random_embeds(models.theirs, 8, seed=4)
    with torch.inference_mode():
        scores = models.theirs(inputs_embeds=vectors[None]).logits[0, -1]
    # Token 0 is just the best, unless it counts as seen.
    lift = float(scores.max() - scores[0]) + 0.05
    strong = replace(GREEDY, bias=((0, lift),), penalties=replace(GREEDY.penalties, repetition=4.0))
    output = run_all(engine_of(models.target, Shape()), [embeds_submission("a", vectors, strong)])[
        "a"
    ]
    assert output.tokens[0] == 0
