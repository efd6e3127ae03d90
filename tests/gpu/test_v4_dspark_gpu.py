"""DSpark inside DeepSeek-V4 on a GPU: every executor drafts what a CPU drafts."""

from dataclasses import replace

import pytest
import torch
from support.engines import engine_of, make_submission
from support.reference import decode
from support.role_traces import traces
from support.row_matrix import MAX_TOKENS, PROMPTS, sampling_of, shape_of
from support.v4_dspark import SIZE, save_with_dspark

from outrider.models.deepseek_v4.v4_dspark import load_v4_dspark
from outrider.models.target import load_target
from outrider.runtime.draft_kinds import BlockDraft
from outrider.wire.draft_budget import Budget


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dspark")
    torch.backends.cuda.matmul.allow_tf32 = False
    return folder, save_with_dspark(folder)


def rounds(folder, sampling, device, **how):
    """Tokens and drafts of all prompts, by request id."""
    target = load_target(folder, dtype="float32", device=torch.device(device))
    model = load_v4_dspark(folder, target.config.dspark, target, dtype="float32")
    draft = BlockDraft(model=model, budget=Budget(steps=SIZE, topk=1, nodes=SIZE + 1))
    shape = shape_of(draft, chunk=7, device=device, **how)
    own = replace(sampling_of(sampling), trace=True)
    asked = [
        make_submission(f"r{i}", text, own, max_tokens=MAX_TOKENS) for i, text in enumerate(PROMPTS)
    ]
    found = traces(engine_of(target, shape, draft), asked)
    return {name: each[:2] for name, each in found.items()}


@pytest.mark.parametrize("executor", ["eager", "graph", "breakable"])
@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
def test_every_executor_drafts_what_a_cpu_drafts(saved, sampling, executor):
    folder, oracle = saved
    found = rounds(folder, sampling, "cuda", executor=executor, depth=1, pad=4)
    assert found == rounds(folder, sampling, "cpu")
    for i, text in enumerate(PROMPTS):
        right = decode(oracle.theirs, text, sampling_of(sampling), max_tokens=MAX_TOKENS)
        assert found[f"r{i}"][0] == right.tokens
