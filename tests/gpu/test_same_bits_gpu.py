"""Answers in bf16 have the same bits with drafts and other chunks, prefix hits and preemptions."""

import random

import pytest
import torch
from support.engines import Shape, engine_of, make_submission, run_all
from support.matrix import sampling_of
from support.recurrent import saved_recurrent
from support.tiny import save_tiny
from support.v4 import saved_v4

from outrider.models.target import load_target
from outrider.runtime.draft_kinds import NgramDraft
from outrider.wire.draft_budget import Budget

pytest.importorskip("triton")

USUAL = ["llama", "llama-uneven", "qwen2", "qwen3", "mixtral", "deepseek-v2-lite", "deepseek-v3"]
RECURRENT = ["qwen3-next", "qwen3.5"]
OTHERS = ["v4", *RECURRENT]  # without a prefix cache
CHAIN = NgramDraft(budget=Budget(steps=3, topk=1, nodes=4), min_match=2, max_match=4)
FIXED = {"device": "cuda", "arithmetic": "fixed", "max_context": 700, "page_size": 16}
MAX_TOKENS = 80


@pytest.fixture(scope="module", params=[*USUAL, *OTHERS])
def target(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    if request.param in RECURRENT:
        saved_recurrent(folder, request.param)
    elif request.param == "v4":
        saved_v4(folder)
    else:
        save_tiny(request.param, folder)
    device = torch.device("cuda")
    model = load_target(folder, dtype="bfloat16", device=device, arithmetic="fixed")
    return request.param, model


def prompts(vocab):
    """Two long texts with the same beginning, one that repeats itself, and a short one."""
    rng = random.Random(3)
    shared = [rng.randrange(3, vocab) for _ in range(460)]
    ends = [[rng.randrange(3, vocab) for _ in range(n)] for n in (70, 9)]
    return [shared + ends[0], shared + ends[1], shared[:11] * 25, shared[:5]]


def ask(texts, turn):
    return [
        make_submission(f"{turn}.{i}", text, sampling_of("sampled", i), max_tokens=MAX_TOKENS)
        for i, text in enumerate(texts)
    ]


def scores(outputs):
    return {name.split(".")[1]: (one.tokens, one.logprobs) for name, one in outputs.items()}


def test_drafts_chunks_prefix_hits_and_preemptions_change_no_bit(target):
    family, model = target
    texts, has_cache = prompts(60), family not in OTHERS
    roomy = Shape(max_rows=1, step_tokens=1024, kv_tokens=4096, prefix_cache=False, **FIXED)
    alone = scores(run_all(engine_of(model, roomy), ask(texts, 0)))
    tight = Shape(
        max_rows=4, step_tokens=45, kv_tokens=1040, prefix_cache=has_cache, executor="eager",
        depth=1, **FIXED,
    )  # fmt: skip
    engine = engine_of(model, tight, CHAIN)
    turns = [run_all(engine, ask(texts, turn)) for turn in range(2)]
    progress = [one.last.progress for turn in turns for one in turn.values()]
    assert sum(one.preemptions for one in progress)
    assert any(one.cached for one in progress) == has_cache
    for turn in turns:
        assert scores(turn) == alone
