"""Known mistakes, put back one at a time into DeepSeek-V4's plans: each is noticed."""

from dataclasses import replace

import pytest
import torch
from support.row_matrix import CHAIN, LONGEST, Case, mismatches, run_case, shape_of

from outrider.models.deepseek_v4.compressed_cache import CompressedLayout
from outrider.models.deepseek_v4.compressed_plan import CompressedAttention
from outrider.ops.sparse import fill_compressed, ring_plan
from outrider.step.buckets import Buckets


def count_tokens_before_padding(monkeypatch):
    """Where a chunk's tokens lie is counted without the rows that padding added."""
    original = ring_plan.fill_owners

    def unpadded(plan, step):
        rows = original(plan, step)
        num_padding = (step.decode.rows == 0).sum() * step.nodes
        is_chunk = torch.arange(rows.firsts.shape[0]) >= step.num_rows
        return replace(rows, firsts=rows.firsts - num_padding * is_chunk)

    monkeypatch.setattr(ring_plan, "fill_owners", unpadded)


def replace_fill_writes(monkeypatch, changed):
    for module in (ring_plan, fill_compressed):  # of windows, and of compressor states
        monkeypatch.setattr(module, "fill_writes", changed)


def write_targets_of_the_widest_step(monkeypatch):
    """The targets of a chain are baked for the longest one, and a shorter step does not cut them:
    it takes the first of the flat list, which are other rows'.
    """
    original = ring_plan.fill_writes

    def uncut(plan, rows, owners, *, length):
        original(plan, rows, owners, length=length)
        widest = length + 2 - plan.sources.shape[1]
        position = rows.starts[:, None] + torch.arange(widest)
        flat = (rows.rows[:, None] * length + position % length).flatten()
        num = min(plan.writes.shape[0], flat.shape[0])
        plan.writes[:num] = flat[:num]

    replace_fill_writes(monkeypatch, uncut)


def write_all_nodes_to_the_slot_of_the_first(monkeypatch):
    """A step's targets are not those of its own position."""
    original = ring_plan.fill_writes

    def first(plan, rows, owners, *, length):
        at_start = replace(rows, positions=rows.starts[owners])
        original(plan, at_start, owners, length=length)

    replace_fill_writes(monkeypatch, first)


def make_rings_as_long_as_what_is_read(monkeypatch):
    """Ring buffers without room for drafts that are rejected."""
    monkeypatch.setattr(CompressedLayout, "ring_length", lambda self, window: window)


def count_visible_entries_only_once(monkeypatch):
    """Metadata counts as ready because some earlier step made it so."""
    original, done = fill_compressed._fill_blocks, set()

    def once(plan, kind, rows, ends, page_table, page_size):
        key = (plan.counts.shape, plan.starts.shape, kind)
        before = plan.counts.clone()
        original(plan, kind, rows, ends, page_table, page_size)
        if key in done:
            plan.counts.copy_(before)
        done.add(key)

    monkeypatch.setattr(fill_compressed, "_fill_blocks", once)


def end_blocks_one_token_late(monkeypatch):
    """A block that ends with the step's last token is forgotten."""
    original = fill_compressed._block_ends

    def late(ratio, rows, step, *, num_windows):
        shorter = replace(rows, counts=rows.counts - 1)
        return original(ratio, shorter, step, num_windows=num_windows)

    monkeypatch.setattr(fill_compressed, "_block_ends", late)


CASES = [
    Case(sampling, draft, shape_of(draft, chunk=7, pad=4, executor=executor, depth=1))
    for draft in (CHAIN, LONGEST)
    for sampling, executor in (("greedy", "tape"), ("sampled", "eager"))
]
MUTATIONS = [
    count_tokens_before_padding,
    write_targets_of_the_widest_step,
    write_all_nodes_to_the_slot_of_the_first,
    make_rings_as_long_as_what_is_read,
    count_visible_entries_only_once,
    end_blocks_one_token_late,
]


@pytest.mark.slow
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
