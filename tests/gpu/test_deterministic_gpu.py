"""Deterministic arithmetic in bf16: an answer has the same bits in any batch, drafted or not."""

import random

import pytest
import torch
from support.engines import Shape, engine_of, make_submission, run_all
from support.matrix import TREES, Models, sampling_of
from support.model_set import make_models
from support.tiny import VOCAB

from outrider.models.decoder_loader import load_decoder

FIXED = {
    "device": "cuda",
    "arithmetic": "fixed",
    "prefix_cache": False,
    "max_context": 700,
    "kv_tokens": 4096,
}
# Over several splits of the keys, around a border of blocks, and next to nothing.
_rng = random.Random(3)
PROMPTS = [[_rng.randrange(VOCAB) for _ in range(length)] for length in (600, 255, 63, 1)]


@pytest.fixture(scope="module", params=["llama", "deepseek-v3"])
def models(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    exact = make_models(root, "cuda", request.param)

    def load(name):
        return load_decoder(
            root / name, dtype="bfloat16", device=torch.device("cuda"), arithmetic="fixed"
        )

    return Models(
        theirs=exact.theirs,
        target=load("target"),
        relative=load("relative"),  # whose drafts are kept now and then
        stranger=load("stranger"),
        folder=exact.folder,
        heads={},
        modules=exact.modules,  # of float32, and not asked for here
    )


def answers(models, shape, draft, sampling, prompts):
    submissions = [
        make_submission(f"r{i}", prompt, sampling_of(sampling, i), max_tokens=24)
        for i, prompt in prompts.items()
    ]
    outputs = run_all(engine_of(models.target, shape, draft), submissions)
    return {name: (one.tokens, one.logprobs) for name, one in outputs.items()}


@pytest.mark.parametrize("tree", ["chain", "tree", "wide"])
@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
@pytest.mark.parametrize("executor", ["eager", "breakable"])
def test_drafts_batch_and_chunks_change_no_bit(models, sampling, tree, executor):
    alone = {}
    for index, prompt in enumerate(PROMPTS):
        shape = Shape(max_rows=1, **FIXED)
        draft = models.draft("none", TREES[tree])
        alone |= answers(models, shape, draft, sampling, {index: prompt})
    shape = Shape(pad=4, depth=1, step_tokens=280, executor=executor, **FIXED)
    draft = models.draft("relative", TREES[tree])
    together = answers(models, shape, draft, sampling, dict(enumerate(PROMPTS)))
    assert together == alone
