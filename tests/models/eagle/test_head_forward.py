"""Heads against a recomputation without cache and pages; target states from transformers."""

import random
from dataclasses import asdict, dataclass

import pytest
import torch
from support.head_oracle import Oracle
from support.heads import Variant, head_tensors, write_head
from support.steps import NO_FLAGS, SmallDevice, batch_of, small_device
from support.tiny import VOCAB

from outrider.kv.kv_pool import KVLayout, KVPool
from outrider.ops.tree.chain import single_node
from outrider.step.fill_plan import fill, resolve_lengths

CPU = torch.device("cpu")
PAGE_SIZE = 4
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
}


@dataclass
class Paged:
    """A model's own tables, pool and planner."""

    device: SmallDevice
    pool: KVPool

    def run(self, function, chunks):
        """`function(plan, pool, attention)` of {row: (start, tokens)}, split by row."""
        device = self.device
        plan = device.planner.plan(batch_of({}, chunks, nodes=1), sampling_flags=NO_FLAGS)
        resolve_lengths(plan, device.table)
        tree = single_node(device.table.last_tokens[plan.decode.rows])
        fill(plan, tree, table=device.table, attention=device.attention, page_size=PAGE_SIZE)
        out = function(plan, self.pool, device.attention)
        return dict(zip(chunks, out.split([len(t) for _, t in chunks.values()]), strict=True))


def paged(*, num_layers, attention):
    layout = KVLayout(
        layers=num_layers,
        vectors=attention.vectors,
        width=attention.width,
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
    """The head's projection of aux_hidden_states at the first positions, by row."""
    config = decoder.config
    aux_hidden_states = paged(num_layers=config.num_layers, attention=config.attention).run(
        lambda plan, kv, attention: (
            decoder.forward(plan, kv, attention, head.facts.aux_layers).aux_hidden_states
        ),
        {row: (0, tokens[:LENGTH]) for row, tokens in rows.items()},
    )
    return {row: head.project(each) for row, each in aux_hidden_states.items()}


def drafted_states(head, rows, before):
    """The states after all positions, in three steps; the last runs on the head's own state."""
    pool = paged(num_layers=1, attention=head.facts.attention)
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
        before = true_states(decoder, head, rows)
        state = torch.cat([before[row] for row in rows])
        for run in (head.forward, head.catch_up):
            pool = paged(num_layers=1, attention=head.facts.attention)
            after = pool.run(
                lambda plan, kv, attention, run=run: run(plan, state.clone(), kv, attention),
                {row: (0, tokens[1 : LENGTH + 1]) for row, tokens in rows.items()},
            )
            written.append(pool.pool.storage)
    assert written[0].abs().sum() > 0
    assert close(written[1], written[0])
    assert all(torch.equal(after[row], before[row]) for row in rows)


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
            expected_before = oracle.project(oracle.aux_hidden_states(tokens[:LENGTH]))
            assert close(before[row], expected_before)
            expected = oracle.forward(tokens[1:-1], expected_before)
            recycled = torch.cat([expected_before, expected[-1:]])
            expected = oracle.forward(tokens[1:], recycled)
            assert close(after[row], expected)
            assert close(head.logits(after[row]), oracle.logits(expected))
