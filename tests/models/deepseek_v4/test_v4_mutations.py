"""Known mistakes, put back one at a time into DeepSeek-V4's plans and rings: each is noticed."""

from dataclasses import replace

import pytest
import torch
from support.row_matrix import CHAIN, LONGEST, Case, mismatches, run_case, shape_of

from outrider.models.deepseek_v4 import compressed_plan as compressed
from outrider.models.deepseek_v4.compressed_cache import CompressedLayout
from outrider.models.deepseek_v4.compressed_plan import CompressedAttention
from outrider.step.buckets import Buckets


def count_tokens_before_padding(monkeypatch):
    """Where a chunk's tokens lie is counted without the rows that padding added."""
    original = compressed.fill_owners

    def unpadded(shape, scope, **written):
        step = original(shape, scope, **written)
        num_padding = (scope.decode.rows == 0).sum() * shape.nodes
        is_chunk = torch.arange(step.firsts.shape[0]) >= shape.rows
        return replace(step, firsts=step.firsts - num_padding * is_chunk)

    monkeypatch.setattr(compressed, "fill_owners", unpadded)


def write_targets_of_the_widest_step(monkeypatch):
    """The targets of a chain are baked for the longest one, and a shorter step does not cut them:
    it takes the first of the flat list, which are other rows'.
    """
    original = compressed.fill_writes

    def uncut(part, step, owners, *, length):
        original(part, step, owners, length=length)
        widest = length + 2 - part.sources.shape[1]
        position = step.starts[:, None] + torch.arange(widest)
        flat = (step.rows[:, None] * length + position % length).flatten()
        num = min(part.writes.shape[0], flat.shape[0])
        part.writes[:num] = flat[:num]

    monkeypatch.setattr(compressed, "fill_writes", uncut)


def write_all_nodes_to_the_slot_of_the_first(monkeypatch):
    """A step's targets are not those of its own position."""
    original = compressed.fill_writes

    def first(part, step, owners, *, length):
        at_start = replace(step, positions=step.starts[owners])
        original(part, at_start, owners, length=length)

    monkeypatch.setattr(compressed, "fill_writes", first)


def make_rings_as_long_as_what_is_read(monkeypatch):
    """Nobody thought of the drafts that are taken back."""
    monkeypatch.setattr(CompressedLayout, "ring", lambda self, window: window)


def count_visible_entries_only_once(monkeypatch):
    """Metadata counts as ready because some earlier step made it so."""
    original, done = CompressedAttention._fill_blocks, set()

    def once(self, part, kind, step, plan, page_table):
        key = (plan.shape, kind)
        kept = part.counts.clone()
        original(self, part, kind, step, plan, page_table)
        if key in done:
            part.counts.copy_(kept)
        done.add(key)

    monkeypatch.setattr(CompressedAttention, "_fill_blocks", once)


def end_blocks_one_token_late(monkeypatch):
    """A block that ends with the step's last token is forgotten."""
    original = compressed._block_ends

    def late(ratio, step, shape):
        return original(ratio, replace(step, counts=step.counts - 1), shape)

    monkeypatch.setattr(compressed, "_block_ends", late)


CASES = [
    Case(law, draft, shape_of(draft, chunk=7, pad=4, executor=executor, depth=1))
    for draft in (CHAIN, LONGEST)
    for law, executor in (("greedy", "tape"), ("sampled", "eager"))
]
MUTATIONS = [
    count_tokens_before_padding,
    write_targets_of_the_widest_step,
    write_all_nodes_to_the_slot_of_the_first,
    make_rings_as_long_as_what_is_read,
    count_visible_entries_only_once,
    end_blocks_one_token_late,
]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_unharmed_engine_passes_where_mutants_are_caught(theirs, target, case):
    assert not mismatches(theirs, target, case)


@pytest.mark.slow
@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_a_wrong_answer_gives_away(theirs, target, monkeypatch, mutate):
    """A mutant that does not even run proves nothing."""
    mutate(monkeypatch)
    found = [run_case(target, case) for case in CASES[:1]]
    assert {entry.last.finish for entry in found[0].values()} == {"length"}
    assert any(mismatches(theirs, target, case) for case in CASES)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_planning_before_padding_does_not_even_run(target, monkeypatch):
    fit, bind, exact = Buckets.fit, CompressedAttention.bind, {}

    def remembering_fit(self, batch, *, sampling_flags):
        shape = fit(self, batch, sampling_flags=sampling_flags)
        exact[shape] = fit(Buckets(page_size=self.page_size), batch, sampling_flags=sampling_flags)
        return shape

    monkeypatch.setattr(Buckets, "fit", remembering_fit)
    monkeypatch.setattr(
        CompressedAttention, "bind", lambda self, arena, shape: bind(self, arena, exact[shape])
    )
    outputs = run_case(target, CASES[0])
    assert "error" in {entry.last.finish for entry in outputs.values()}
