"""Heads against a plain recomputation: no cache, no pages, target states from transformers."""

import random
from dataclasses import asdict, dataclass

import pytest
import torch
import torch.nn.functional as F
from support.heads import LAYER, Variant, head_tensors, write_head
from support.steps import NO_WARPS, SmallDevice, batch_of, small_device
from support.tiny import VOCAB

from outrider.memory.pool import KVLayout, KVPool
from outrider.spec.drafter import single_node
from outrider.step.fill import fill, resolve_lengths

CPU = torch.device("cpu")
PAGE_SIZE = 4
TOLERANCE = 1e-4  # largest difference of any element, in float32
EPS = 1e-5  # of the heads that write_head writes
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
}


class Oracle:
    """One head over one row, all of it at once."""

    def __init__(self, model, variant, tensors):
        self._model = model
        self._variant = variant
        self._weights = tensors

    def features(self, tokens):
        """What the head reads of the target at every position."""
        model, variant = self._model.model, self._variant
        stream = model.embed_tokens(torch.tensor([tokens]))
        streams = [stream]
        rotation = model.rotary_emb(stream, torch.arange(len(tokens))[None])
        future = torch.full((len(tokens), len(tokens)), float("-inf")).triu(1)
        for block in model.layers:
            mask = future[None, None]
            stream = block(stream, attention_mask=mask, position_embeddings=rotation)
            streams.append(stream)
        if variant.algorithm == "eagle" or not variant.uses_aux:
            return model.norm(stream)[0]
        captured = variant.layers or (2, 1, 0)  # the usual ones of a target of three layers
        return torch.cat([streams[layer][0] for layer in captured], -1)

    def project(self, features):
        variant, weights = self._variant, self._weights
        if variant.algorithm == "eagle" or not variant.uses_aux:
            return features
        if variant.norm_before_fc:
            features = self._rms(features, "input_norm")
        if variant.fc_norm:
            width = weights["fc_norm.0.weight"].shape[0]
            parts = features.split(width, -1)
            features = torch.cat(
                [self._rms(part, f"fc_norm.{i}") for i, part in enumerate(parts)], -1
            )
        return features @ weights["fc.weight"].T

    def advance(self, tokens, states):
        """States after every row, given those before."""
        variant, weights = self._variant, self._weights
        table = weights.get("embed_tokens.weight", self._model.model.embed_tokens.weight)
        embedded = table[torch.tensor(tokens)]
        if variant.algorithm == "eagle":
            x = torch.cat([embedded, states], -1) @ weights["fc.weight"].T
            x = residual = x + weights.get("fc.bias", 0.0)
        else:
            normed = self._rms(states, LAYER + "hidden_norm")
            x = torch.cat([self._rms(embedded, LAYER + "input_layernorm"), normed], -1)
            residual = normed if variant.norm_before_residual else states
        y = residual + self._attend(x)
        z = self._rms(y, LAYER + "post_attention_layernorm")
        gate, up = self._linear(z, "mlp.gate_proj"), self._linear(z, "mlp.up_proj")
        y = y + self._linear(F.silu(gate) * up, "mlp.down_proj")
        return self._rms(y, "norm") if variant.norm_output else y

    def logits(self, states):
        if self._variant.algorithm == "eagle3" and not self._variant.norm_output:
            states = self._rms(states, "norm")
        head = self._weights.get("lm_head.weight", self._model.lm_head.weight)
        return states @ head.T

    def _attend(self, x):
        length, head_dim = x.shape[0], self._variant.head_dim
        query, key, value = (
            self._linear(x, f"self_attn.{name}").view(length, -1, head_dim).transpose(0, 1)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        if self._variant.head_norm:
            query = self._rms(query, LAYER + "self_attn.q_norm")
            key = self._rms(key, LAYER + "self_attn.k_norm")
        query, key = self._rotate(query), self._rotate(key)
        repeats = query.shape[0] // key.shape[0]
        key, value = key.repeat_interleave(repeats, 0), value.repeat_interleave(repeats, 0)
        scores = query @ key.transpose(1, 2) * head_dim**-0.5
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        out = scores.masked_fill(future, float("-inf")).softmax(-1) @ value
        return self._linear(out.transpose(0, 1).reshape(length, -1), "self_attn.o_proj")

    def _rotate(self, x):  # [heads, length, head_dim]
        half = x.shape[-1] // 2
        speed = self._variant.theta ** (-torch.arange(half) / half)
        angle = torch.arange(x.shape[1])[:, None] * speed
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    def _linear(self, x, name):
        weights = self._weights
        return x @ weights[f"{LAYER}{name}.weight"].T + weights.get(f"{LAYER}{name}.bias", 0.0)

    def _rms(self, x, name):
        return x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * self._weights[f"{name}.weight"]


@dataclass
class Paged:
    """A model's own tables, pool and planner."""

    device: SmallDevice
    pool: KVPool

    def run(self, function, chunks):
        """`function(plan, pool, attention)` of {row: (start, tokens)}, split by row."""
        device = self.device
        plan = device.planner.plan(batch_of({}, chunks, nodes=1), warps=NO_WARPS)
        resolve_lengths(plan, device.table)
        tree = single_node(device.table.last_tokens[plan.uniform.rows])
        fill(plan, tree, table=device.table, attention=device.attention, page_size=PAGE_SIZE)
        out = function(plan, self.pool, device.attention)
        return dict(zip(chunks, out.split([len(t) for _, t in chunks.values()]), strict=True))


def paged(*, num_layers, attention):
    layout = KVLayout(
        layers=num_layers,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        page_size=PAGE_SIZE,
        dtype=torch.float32,
    )
    device = small_device(random.Random(0), page_size=PAGE_SIZE, nodes=1)
    return Paged(device, KVPool(layout, num_pages=device.num_pages, device=CPU))


def prompt(length, seed):
    return random.Random(seed).choices(range(VOCAB), k=length)


def close(ours, expected):
    return (ours - expected).abs().max() <= TOLERANCE


def true_states(decoder, head, rows):
    """What the head makes of the target's states at the first positions, by row."""
    config = decoder.config
    features = paged(num_layers=config.num_layers, attention=config.attention).run(
        lambda plan, kv, attention: decoder.run(plan, kv, attention, head.facts.taps).features,
        {row: (0, tokens[:LENGTH]) for row, tokens in rows.items()},
    )
    return {row: head.project(each) for row, each in features.items()}


def drafted_states(head, rows, before):
    """The states after all positions, in three steps; the last runs on the head's own state."""
    pool = paged(num_layers=1, attention=head.facts.attention)
    after = {row: before[row][:0] for row in rows}
    for start, stop in ((0, 6), (6, LENGTH), (LENGTH, LENGTH + 1)):
        known = {row: torch.cat([before[row], after[row][-1:]]) for row in rows}
        window = torch.cat([known[row][start:stop] for row in rows])
        out = pool.run(
            lambda plan, kv, attention, window=window: head.advance(plan, window, kv, attention),
            {row: (start, tokens[start + 1 : stop + 1]) for row, tokens in rows.items()},
        )
        after = {row: torch.cat([after[row], out[row]]) for row in rows}
    return after


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_a_head_over_pages_equals_its_recomputation(variant, target, tmp_path):
    decoder = target.decoder
    variant = variant.complete(decoder.config)
    head = target.load(write_head(tmp_path, decoder.config, dialect="vllm", **asdict(variant)))
    oracle = Oracle(target.theirs, variant, head_tensors(decoder.config, variant, seed=0))
    rows = {row: prompt(LENGTH + 2, seed=row) for row in (1, 2)}
    with torch.inference_mode():
        before = true_states(decoder, head, rows)
        after = drafted_states(head, rows, before)
        for row, tokens in rows.items():
            expected_before = oracle.project(oracle.features(tokens[:LENGTH]))
            assert close(before[row], expected_before)
            expected = oracle.advance(tokens[1:-1], expected_before)
            recycled = torch.cat([expected_before, expected[-1:]])
            expected = oracle.advance(tokens[1:], recycled)
            assert close(after[row], expected)
            assert close(head.logits(after[row]), oracle.logits(expected))
