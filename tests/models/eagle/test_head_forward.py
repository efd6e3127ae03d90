"""Heads against a recomputation without cache and pages; target states from transformers."""

import random
from dataclasses import asdict

import pytest
import torch
from support.head_oracle import Oracle
from support.heads import Variant, head_tensors, write_head
from support.paged_model import paged
from support.tiny import VOCAB

TOLERANCE = 1e-4  # largest difference of any element, in float32
LENGTH = 13

VARIANTS = {
    "eagle": Variant(algorithm="eagle"),
    "eagle with biases": Variant(algorithm="eagle", fc_bias=True, attention_bias=True),
    "eagle with its own embedding": Variant(algorithm="eagle", own_embedding=True),
    "eagle3": Variant(),
    "one layer captured": Variant(layers=(1,)),
    "four layers captured, first and last too": Variant(layers=(0, 2, 1, 3)),
    "the final state": Variant(uses_aux=False),
    "fc_norm": Variant(fc_norm=True, layers=(1, 2)),
    "norm_before_fc": Variant(norm_before_fc=True),
    "norm_before_residual": Variant(norm_before_residual=True),
    "norm_output": Variant(norm_output=True),
    "eagle3.1": Variant(fc_norm=True, norm_output=True, norm_before_residual=True),
    "narrower than the target": Variant(hidden=24),
    "another head_dim and theta": Variant(head_dim=12, theta=500.0),
    "biases": Variant(attention_bias=True),
    "head norms": Variant(head_norm=True),
    "the target's vocabulary and head": Variant(own_head=False),
    "its own head over the whole vocabulary": Variant(draft_vocab=VOCAB),
    "latents": Variant(has_latents=True, query_rank=14, fc_norm=True, norm_output=True),
    "latents with whole queries": Variant(has_latents=True, theta=500.0),
}
SEVERAL_LAYERS = {
    "eagle of two layers": ("vllm", Variant(algorithm="eagle", num_layers=2)),
    "three layers of the final state": ("vllm", Variant(num_layers=3, uses_aux=False)),
    "two layers": ("speculators", Variant(num_layers=2, norm_before_residual=True)),
    "two layers of SGLang": ("sglang", Variant(num_layers=2, later_norm="hidden_norm")),
    "two layers with latents": ("vllm", Variant(num_layers=2, has_latents=True, query_rank=14)),
}
DRAFTING = {name: ("vllm", variant) for name, variant in VARIANTS.items()} | SEVERAL_LAYERS


def prompt(length, seed):
    return random.Random(seed).choices(range(VOCAB), k=length)


def close(ours, expected):
    return (ours - expected).abs().max() <= TOLERANCE


def true_aux(decoder, head, rows):
    """The aux_hidden_states of the target at the first positions, by row."""
    config = decoder.config
    return paged(num_layers=config.num_layers, attention=config.attention).run(
        lambda plan, kv, attention: (
            decoder.forward(plan, kv, attention, head.facts.aux_layers).aux_hidden_states
        ),
        {row: (0, tokens[:LENGTH]) for row, tokens in rows.items()},
    )


def true_states(decoder, head, rows):
    """The head's projection of aux_hidden_states at the first positions, by row."""
    return {row: head.project(each) for row, each in true_aux(decoder, head, rows).items()}


def drafted_states(head, rows, before):
    """The states after all positions, in three steps; the last runs on the head's own state."""
    pool = paged(num_layers=head.facts.num_layers, attention=head.facts.attention)
    after = {row: before[row][:0] for row in rows}
    for start, stop in ((0, 6), (6, LENGTH), (LENGTH, LENGTH + 1)):
        known = {row: torch.cat([before[row], after[row][-1:]]) for row in rows}
        window = torch.cat([known[row][start:stop] for row in rows])
        out = pool.run(
            lambda plan, kv, attention, window=window: head.forward(plan, window, kv, attention),
            {row: (start, tokens[start + 1 : stop + 1]) for row, tokens in rows.items()},
        )
        after = {row: torch.cat([after[row], out[row]]) for row in rows}
    return after


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_the_catch_up_of_a_head_writes_the_kv_that_its_forward_writes(variant, target, tmp_path):
    decoder = target.decoder
    variant = variant.complete(decoder.config)
    head = target.load(write_head(tmp_path, decoder.config, dialect="vllm", **asdict(variant)))
    rows = {row: prompt(LENGTH + 2, seed=row) for row in (1, 2)}
    written = []
    with torch.inference_mode():
        aux = torch.cat(list(true_aux(decoder, head, rows).values()))
        before = head.project(aux)
        for run, given in ((head.forward, before.clone()), (head.catch_up, aux)):
            pool = paged(num_layers=1, attention=head.facts.attention)
            after = pool.run(
                lambda plan, kv, attention, run=run, given=given: run(plan, given, kv, attention),
                {row: (0, tokens[1 : LENGTH + 1]) for row, tokens in rows.items()},
            )
            written.append(pool.pool.storage)
    assert written[0].abs().sum() > 0
    assert close(written[1], written[0])
    assert torch.equal(torch.cat([after[row] for row in rows]), before)


@pytest.mark.parametrize(("dialect", "variant"), SEVERAL_LAYERS.values(), ids=SEVERAL_LAYERS)
def test_the_catch_up_of_several_layers_is_their_forward(dialect, variant, target, tmp_path):
    """The KV of a layer depends on the layers before it."""
    decoder = target.decoder
    variant = variant.complete(decoder.config)
    head = target.load(write_head(tmp_path, decoder.config, dialect=dialect, **asdict(variant)))
    rows, found = {row: prompt(LENGTH + 2, seed=row) for row in (1, 2)}, []
    with torch.inference_mode():
        aux = torch.cat(list(true_aux(decoder, head, rows).values()))
        stored = aux.clone()
        for run, given in ((head.forward, head.project(aux.clone())), (head.catch_up, aux)):
            pool = paged(num_layers=head.facts.num_layers, attention=head.facts.attention)
            after = pool.run(
                lambda plan, kv, attention, run=run, given=given: run(plan, given, kv, attention),
                {row: (0, tokens[1 : LENGTH + 1]) for row, tokens in rows.items()},
            )
            found.append((pool.pool.storage, torch.cat([after[row] for row in rows])))
    assert not head.facts.begins_with_forward
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert torch.equal(aux, stored)  # they belong to the target


@pytest.mark.parametrize(("dialect", "variant"), DRAFTING.values(), ids=DRAFTING)
def test_a_head_over_pages_equals_its_recomputation(dialect, variant, target, tmp_path):
    decoder = target.decoder
    variant = variant.complete(decoder.config)
    head = target.load(write_head(tmp_path, decoder.config, dialect=dialect, **asdict(variant)))
    oracle = Oracle(target.theirs, variant, head_tensors(decoder.config, variant, seed=0))
    rows = {row: prompt(LENGTH + 2, seed=row) for row in (1, 2)}
    with torch.inference_mode():
        before = true_states(decoder, head, rows)
        after = drafted_states(head, rows, before)
        for row, tokens in rows.items():
            expected_before = oracle.project(oracle.aux_hidden_states(tokens[:LENGTH]))
            assert close(before[row], expected_before)
            expected = oracle.forward(tokens[1:-1], expected_before)
            recycled = torch.cat([expected_before, expected[-1:]])
            expected = oracle.forward(tokens[1:], recycled)
            assert close(after[row], expected)
            assert close(head.logits(after[row]), oracle.logits(expected))
