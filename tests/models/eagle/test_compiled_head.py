"""A step of a head in one compiled region against the same step part by part."""

from dataclasses import replace

import pytest
import torch
from support.head_parts import head_of
from support.paged_model import PAGE_SIZE, paged
from support.tiny import VOCAB
from support.torch_threads import torch_threads

from outrider.kv.compiled_attention import CompiledAttention
from outrider.models.eagle.compiled_head import CompiledHead, compile_head
from outrider.models.eagle.eagle3 import Eagle3Head
from outrider.ops.linear.joined_embedding import join_embedding

WHOLE_TILES = {"intermediate": 48}
VARIANTS = {
    "int8 weights": {},
    "dense weights": {"dtype": "float32"},
    "a normed residual": {"norm_before_residual": True},
    "a normed state": {"norm_output": True},
    "narrower than the target": {"hidden": 24},
}
STEPS = {  # row: (start, number of tokens)
    "a token": {1: (9, 1)},
    "rows": {1: (9, 1), 2: (0, 1), 3: (30, 1)},
    "chunks": {1: (0, 13), 3: (5, 8)},
}


def compiled(parts):
    norms = parts.norms
    return compile_head(
        join_embedding(parts.embedding, embedding_norm=norms.embedding, hidden_norm=norms.state),
        parts.layer.stack.compiled,
        parts.layer.rotary,
        is_residual_normed=norms.is_residual_normed,
    )


def after_step(facts, parts, step, *, is_whole):
    """The states after a step of these tokens, and what the pool holds."""
    torch.manual_seed(7)
    total = sum(num for _, num in step.values())
    tokens = iter((torch.arange(total) * 5 % VOCAB).tolist())
    inputs = {row: (start, [next(tokens) for _ in range(n)]) for row, (start, n) in step.items()}
    before = torch.randn(total, facts.width)
    head = Eagle3Head(facts, parts)
    backend = CompiledAttention(page_size=PAGE_SIZE, dtype=torch.float32)
    pool = paged(num_layers=1, attention=facts.attention, backend=backend)
    pool.pool.storage.normal_()
    if not is_whole:
        head._compiled = None
    states = pool.run(lambda plan, kv, kind: head.forward(plan, before, kv, kind), inputs)
    return [*states.values(), pool.pool.storage]


@pytest.mark.parametrize("step", STEPS.values(), ids=list(STEPS))
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=list(VARIANTS))
def test_a_compiled_step_has_the_bits_of_its_parts(variant, step, target, tmp_path):
    facts, parts = head_of(target, tmp_path, **WHOLE_TILES, **variant)
    assert isinstance(compiled(parts), CompiledHead)
    with torch.inference_mode(), torch_threads(1):
        expected = after_step(facts, parts, step, is_whole=False)
    for threads in (1, 2, 3):
        with torch.inference_mode(), torch_threads(threads):
            found = after_step(facts, parts, step, is_whole=True)
        assert all(map(torch.equal, found, expected))


def test_a_step_leaves_the_states_before_it_as_they_were(target, tmp_path):
    facts, parts = head_of(target, tmp_path, **WHOLE_TILES)
    backend = CompiledAttention(page_size=PAGE_SIZE, dtype=torch.float32)
    pool, before = (
        paged(num_layers=1, attention=facts.attention, backend=backend),
        torch.ones(2, facts.width),
    )
    head = Eagle3Head(facts, parts)
    with torch.inference_mode():
        pool.run(lambda plan, kv, kind: head.forward(plan, before, kv, kind), {1: (3, [5, 6])})
    assert torch.equal(before, torch.ones(2, facts.width))


def test_a_head_with_other_parts_runs_part_by_part(target, tmp_path):
    for name, flags in {
        "norms": {"head_norm": True},
        "biases": {"attention_bias": True},
        "half a tile": {"intermediate": 40},
    }.items():
        assert compiled(head_of(target, tmp_path / name, **WHOLE_TILES | flags)[1]) is None


def test_a_step_refuses_a_token_without_an_embedding(target, tmp_path):
    facts, parts = head_of(target, tmp_path, **WHOLE_TILES)
    short = replace(parts, embedding=parts.embedding[:5].contiguous())
    with torch.inference_mode(), pytest.raises(IndexError, match="outside of the embedding"):
        after_step(facts, short, {1: (0, 3)}, is_whole=True)
