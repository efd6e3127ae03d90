"""The catch-up of a head in one compiled region against the same catch-up part by part."""

from dataclasses import replace

import pytest
import torch
from support.head_parts import TARGET_WIDTH, head_of
from support.paged_model import paged
from support.tiny import VOCAB
from support.torch_threads import torch_threads

from outrider.models.eagle.compiled_catch_up import compile_catch_up
from outrider.models.eagle.eagle3 import Eagle3Head
from outrider.ops.linear.joined_embedding import join_embedding

VARIANTS = {
    "no norm": {},
    "a norm for each aux layer": {"fc_norm": True, "layers": (0, 2, 1)},
    "one norm of all": {"norm_before_fc": True},
    "narrower than the target": {"hidden": 24},
    "dense weights": {"dtype": "float32"},
}
CHUNKS = {  # row: (start, number of tokens)
    "a token": {1: (9, 1)},
    "rows": {1: (9, 1), 2: (0, 1), 3: (30, 1)},
    "chunks": {1: (0, 13), 3: (5, 8)},
}


def compiled(parts):
    norms = parts.norms
    join = join_embedding(parts.embedding, embedding_norm=norms.embedding, hidden_norm=norms.state)
    return compile_catch_up(parts.project, parts.layer.kv, join=join, rotary=parts.layer.rotary)


def part_by_part(parts):
    """The same parts, one of them in a form that the region does not know."""
    return replace(parts, project=lambda aux: parts.project(aux))


def caught_up(facts, parts, chunks):
    """The states after a catch-up of these chunks, and what the pool holds."""
    torch.manual_seed(7)
    numbers = torch.arange(sum(num for _, num in chunks.values()))
    tokens = iter((numbers * 5 % VOCAB).tolist())
    inputs = {row: (start, [next(tokens) for _ in range(n)]) for row, (start, n) in chunks.items()}
    aux = torch.randn(len(numbers), len(facts.aux_layers.layers) * TARGET_WIDTH)
    head = Eagle3Head(facts, parts)
    pool = paged(num_layers=1, attention=facts.attention)
    states = pool.run(lambda plan, kv, backend: head.catch_up(plan, aux, kv, backend), inputs)
    return [*states.values(), pool.pool.storage]


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=list(CHUNKS))
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=list(VARIANTS))
def test_a_compiled_catch_up_has_the_bits_of_its_parts(variant, chunks, target, tmp_path):
    facts, parts = head_of(target, tmp_path, **variant)
    assert compiled(parts) is not None
    assert compiled(part_by_part(parts)) is None
    with torch.inference_mode(), torch_threads(1):
        expected = caught_up(facts, part_by_part(parts), chunks)
    assert expected[-1].any()
    for threads in (1, 2, 3):
        with torch.inference_mode(), torch_threads(threads):
            found = caught_up(facts, parts, chunks)
        assert all(map(torch.equal, found, expected))


def test_a_head_with_other_parts_catches_up_part_by_part(target, tmp_path):
    for name, flags in {"norms": {"head_norm": True}, "biases": {"attention_bias": True}}.items():
        assert compiled(head_of(target, tmp_path / name, **flags)[1]) is None


def test_a_catch_up_refuses_a_token_without_an_embedding(target, tmp_path):
    facts, parts = head_of(target, tmp_path)
    short = replace(parts, embedding=parts.embedding[:5].contiguous())
    with torch.inference_mode(), pytest.raises(IndexError, match="outside of the embedding"):
        caught_up(facts, short, {1: (0, 3)})


def test_a_state_that_is_not_finite_stays_in_its_row(target, tmp_path):
    facts, parts = head_of(target, tmp_path)
    bad = parts.embedding.clone()
    bad[5] = torch.nan  # the second token
    with torch.inference_mode():
        good = caught_up(facts, parts, CHUNKS["rows"])[-1]
        found = caught_up(facts, replace(parts, embedding=bad), CHUNKS["rows"])[-1]
    differs = (found != good).flatten(3).any(-1).sum()
    assert differs == 1
    assert not found.isinf().any()
