"""Embeddings in place of tokens for models with row state."""

from dataclasses import replace

import pytest
import torch
from support.embedded_prompts import (
    GREEDY,
    embeds_mismatches,
    embeds_reference,
    embeds_submission,
    random_embeds,
    table_of,
)
from support.engines import Shape, engine_of, make_submission, run_all
from support.row_matrix import MAX_TOKENS, PROMPTS, sampling_of, shape_of
from support.row_models import row_model, row_reference

from outrider.errors import RequestError
from outrider.step.input_embeds import EmbedsBuffer

pytestmark = pytest.mark.usefixtures("poisoned_embeds")

FAMILIES = ["qwen3-next", "qwen3.5"]


def every_way(test):
    """Every family, drafter, executor, depth, padding and chunk size; slow tests run all pairs."""
    for name, values in (
        ("family", FAMILIES),
        ("drafter", ["none", "ngram", "modules", "head"]),
        ("executor", ["eager", "tape"]),
        ("depth", [0, 1]),
        ("pad", [1, 3]),
        ("chunk", [1, 7, 30]),
    ):
        test = pytest.mark.parametrize(name, values)(test)
    return pytest.mark.fast_cases(1)(test)


@every_way
def test_any_embeddings_give_the_tokens_of_transformers(
    family, drafter, chunk, executor, depth, pad
):
    target, drafts = row_model(family)
    shape = shape_of(drafts[drafter], chunk=chunk, executor=executor, depth=depth, pad=pad)
    engine = engine_of(target, shape, drafts[drafter])
    found = embeds_mismatches(row_reference(family), engine, page_size=shape.page_size)
    assert found == []


@every_way
def test_embeddings_of_ids_are_the_ids(family, drafter, chunk, executor, depth, pad):
    """Tokens, log-probabilities and drafts; every second prompt of the batch is of tokens."""
    target, drafts = row_model(family)
    draft, table, outputs = drafts[drafter], table_of(row_reference(family)), []
    shape, own = (
        shape_of(draft, chunk=chunk, executor=executor, depth=depth, pad=pad),
        replace(sampling_of("sampled"), trace=True),
    )
    for is_embedded in (False, True):
        asked = [
            make_submission(f"r{i}", prompt, own, max_tokens=MAX_TOKENS)
            for i, prompt in enumerate(PROMPTS)
        ]
        if is_embedded:
            asked[::2] = [
                replace(
                    each, embeds=embeds_submission("a", table[torch.tensor(each.prompt)]).embeds
                )
                for each in asked[::2]
            ]
        outputs.append(run_all(engine_of(target, shape, draft), asked))
    for name, expected in outputs[0].items():
        got = outputs[1][name]
        assert (got.tokens, got.logprobs) == (expected.tokens, expected.logprobs)
        assert got.rounds == expected.rounds
        assert got.last.progress == expected.last.progress


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_prefix_of_embeddings_continues_from_its_snapshot(family):
    """The state of a row at a page border belongs to the embeddings before it."""
    target, drafts = row_model(family)
    theirs, engine = row_reference(family), engine_of(target, shape_of(drafts["none"], chunk=40))
    first = random_embeds(theirs, 40, seed=1)
    other = torch.cat([first[:20], random_embeds(theirs, 20, seed=9)])
    cached = []
    for vectors in (first, first, other, other):
        output = run_all(engine, [embeds_submission("a", vectors)])["a"]
        assert output.tokens == embeds_reference(theirs, vectors)[0]
        cached.append(output.last.progress.cached)
    assert cached[:2] == [0, 32]
    assert cached[3] == 32  # as `other` differs from `first` before


@pytest.mark.slow
def test_a_stale_embedding_slot_is_noticed(monkeypatch):
    """A mistake, put back: a capture reads what an earlier step staged."""
    stage, staged = EmbedsBuffer.stage, set()

    def once(self, chunks, shape):
        if shape not in staged:
            staged.add(shape)
            stage(self, chunks, shape)

    monkeypatch.setattr(EmbedsBuffer, "stage", once)
    target, drafts = row_model("qwen3-next")
    theirs = row_reference("qwen3-next")
    shape = shape_of(drafts["none"], chunk=30, executor="tape", prefix_cache=False)
    engine = engine_of(target, shape)
    for seed, is_right in ((1, True), (2, False)):
        vectors = random_embeds(theirs, 9, seed=seed)
        answer = run_all(engine, [embeds_submission("a", vectors)])["a"]
        assert (answer.tokens == embeds_reference(theirs, vectors)[0]) is is_right


def test_a_model_that_routes_by_token_ids_refuses_embeddings_with_the_reason():
    target, _ = row_model("v4")
    engine = engine_of(target, Shape(page_size=16))
    vectors = table_of(row_reference("v4"))[torch.tensor([5, 6, 7])]
    submission = embeds_submission("a", vectors, GREEDY)
    with pytest.raises(RequestError, match="chooses experts by token ids; send token ids"):
        engine.check(submission.prompt, submission.limits, submission.embeds)
