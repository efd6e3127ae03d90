"""Embeddings in place of tokens: the answers of transformers, and of the ids they are of."""

from dataclasses import replace

import pytest
import torch
from support.engines import Shape, engine_of, make_submission, run_all
from support.matrix import PROMPTS, SAMPLINGS, TREES, sampling_of

from outrider.step.input_embeds import EmbedsBuffer
from outrider.wire.embedded_span import EmbeddedSpan

MAX_TOKENS = 9
GREEDY = SAMPLINGS["greedy"]
CASES = [  # drafter, tree, how the engine runs
    ("relative", "wide", Shape(pad=4, executor="tape", depth=1, step_tokens=87)),
    ("none", "chain", Shape()),
    ("none", "chain", Shape(pad=4, executor="tape", depth=1, step_tokens=9)),
    ("relative", "tree", Shape(depth=1, step_tokens=34)),
    ("twin", "tree", Shape(executor="tape", step_tokens=33, page_size=16)),
    ("eagle", "chain", Shape(pad=4, executor="tape", depth=1, step_tokens=19)),
    ("eagle3", "tree", Shape(executor="tape", depth=1, step_tokens=39)),
    ("mtp", "chain", Shape(step_tokens=17, page_size=1)),
    ("modules", "chain", Shape(executor="tape", depth=1, step_tokens=23)),
]


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    """Whatever a step does not stage is NaN."""
    stage = EmbedsBuffer.stage

    def poison(self, chunks, shape):
        self._arena._buffers["embeds"].fill_(float("nan"))
        stage(self, chunks, shape)

    monkeypatch.setattr(EmbedsBuffer, "stage", poison)


def table_of(theirs):
    return theirs.get_input_embeddings().weight.detach()


def random_embeds(theirs, count, seed):
    table = table_of(theirs)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, table.shape[1], generator=generator) * table.std()


def span_of(vectors, first=0):
    return EmbeddedSpan(first=first, width=vectors.shape[1], values=vectors.numpy().tobytes())


def submission_of(name, vectors, sampling=GREEDY, **more):
    """A prompt of embeddings alone."""
    plain = make_submission(name, [0] * len(vectors), sampling, max_tokens=MAX_TOKENS, **more)
    return replace(plain, embeds=(span_of(vectors),))


def reference(theirs, vectors, max_tokens=MAX_TOKENS):
    """Tokens and log-probabilities of greedy decoding after these embeddings."""
    tokens, logprobs, table = [], [], table_of(theirs)
    with torch.inference_mode():
        for _ in range(max_tokens):
            scores = theirs(inputs_embeds=vectors[None]).logits[0, -1].log_softmax(-1)
            tokens.append(int(scores.argmax()))
            logprobs.append(float(scores.max()))
            vectors = torch.cat([vectors, table[tokens[-1]][None]])
    return tokens, logprobs


def prompts_of(theirs):
    """Random ones, tokens, and tokens inside of random ones: all of them in one batch."""
    table, found = table_of(theirs), {}
    found["random"] = random_embeds(theirs, 14, seed=1)
    found["short"] = random_embeds(theirs, 1, seed=2)
    found["tokens"] = table[torch.tensor(PROMPTS[0])]
    found["mixed"] = torch.cat(
        [table[torch.tensor(PROMPTS[1][:5])], random_embeds(theirs, 6, seed=3), table[[7, 7]]]
    )
    return found


def mismatches(models, drafter, tree, shape):
    """What differs from transformers, cold and with a cached prefix."""
    engine = engine_of(models.target, shape, models.draft(drafter, TREES[tree]))
    prompts, found = prompts_of(models.theirs), []
    for is_cached in (False, True):
        outputs = run_all(engine, [submission_of(*each) for each in prompts.items()])
        for name, vectors in prompts.items():
            tokens, logprobs = reference(models.theirs, vectors)
            if outputs[name].tokens != tokens:
                found.append(f"{name}: {outputs[name].tokens} instead of {tokens}")
            elif outputs[name].logprobs != pytest.approx(logprobs, abs=1e-4):
                found.append(f"{name}: logprobs {outputs[name].logprobs} instead of {logprobs}")
        if is_cached and shape.page_size <= 4 and not outputs["random"].last.progress.cached:
            found.append("the prefix cache served nothing")
    return found


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(("drafter", "tree", "shape"), CASES, ids=lambda each: str(each)[:8])
def test_any_embeddings_give_the_tokens_of_transformers(models, drafter, tree, shape):
    assert mismatches(models, drafter, tree, shape) == []


def test_a_draft_model_drafts_after_any_embeddings(models):
    """It reads ids where the target reads embeddings; `run_all` asserts that it did not fail."""
    engine = engine_of(models.target, Shape(), models.draft("relative", TREES["chain"]))
    vectors = random_embeds(models.theirs, 5, seed=6)
    answer = run_all(engine, [submission_of("a", vectors)])["a"]
    assert answer.last.progress.drafted > 0
    assert answer.tokens == reference(models.theirs, vectors)[0]


@pytest.mark.slow
def test_latents_take_embeddings_too(targets):
    shape = Shape(pad=4, executor="tape", depth=1, step_tokens=40)
    assert mismatches(targets["deepseek-v3"], "eagle3", "tree", shape) == []


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
        answer = run_all(engine, [submission_of("a", vectors)])["a"]
        assert (answer.tokens == reference(models.theirs, vectors)[0]) is is_right


@pytest.mark.fast_cases(0)
@pytest.mark.parametrize(("drafter", "tree", "shape"), CASES, ids=lambda each: str(each)[:8])
def test_embeddings_of_ids_are_the_ids(models, drafter, tree, shape):
    """Tokens, log-probabilities and drafts, with the sampling of every row its own."""
    draft, outputs = models.draft(drafter, TREES[tree]), []
    table = table_of(models.theirs)
    for is_embedded in (False, True):
        submissions = []
        for index, prompt in enumerate(PROMPTS):
            own, name = sampling_of("mixed", index), f"r{index}"
            submissions.append(
                submission_of(name, table[torch.tensor(prompt)], own)
                if is_embedded
                else make_submission(name, prompt, own, max_tokens=MAX_TOKENS)
            )
        outputs.append(run_all(engine_of(models.target, shape, draft), submissions))
    for name, expected in outputs[0].items():
        got = outputs[1][name]
        assert (got.tokens, got.logprobs) == (expected.tokens, expected.logprobs)
        assert got.last.progress == expected.last.progress  # rounds, drafts, what was accepted


@pytest.mark.slow
def test_prefixes_are_shared_by_content_alone(models):
    engine = engine_of(models.target, Shape(page_size=4))
    first = random_embeds(models.theirs, 12, seed=1)
    other = torch.cat([first[:6], random_embeds(models.theirs, 6, seed=9)])
    for vectors, num_cached in ((first, 0), (other, 4), (first, 8), (other, 8)):
        output = run_all(engine, [submission_of("a", vectors)])["a"]
        assert output.last.progress.cached == num_cached
        assert output.tokens == reference(models.theirs, vectors)[0]


@pytest.mark.slow
def test_a_preempted_request_keeps_its_embeddings(models):
    engine = engine_of(models.target, Shape(kv_tokens=48, page_size=4, prefix_cache=False))
    prompts = {f"r{seed}": random_embeds(models.theirs, 12, seed=seed) for seed in range(3)}
    wanted = [
        replace(submission_of(*each), limits=replace(submission_of(*each).limits, max_tokens=20))
        for each in prompts.items()
    ]
    outputs = run_all(engine, wanted)
    assert sum(each.last.progress.preemptions for each in outputs.values()) > 0
    for name, vectors in prompts.items():
        assert outputs[name].tokens == reference(models.theirs, vectors, max_tokens=20)[0]


def test_penalties_do_not_see_the_placeholder_of_an_embedding(models):
    vectors = random_embeds(models.theirs, 8, seed=4)
    with torch.inference_mode():
        scores = models.theirs(inputs_embeds=vectors[None]).logits[0, -1]
    # Token 0 is just the best, unless it counts as seen.
    lift = float(scores.max() - scores[0]) + 0.05
    strong = replace(GREEDY, bias=((0, lift),), penalties=replace(GREEDY.penalties, repetition=4.0))
    output = run_all(engine_of(models.target, Shape()), [submission_of("a", vectors, strong)])["a"]
    assert output.tokens[0] == 0
