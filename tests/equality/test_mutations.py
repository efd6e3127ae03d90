"""Known mistakes, put back one at a time: the matrix must notice each of them."""

import pytest
import torch
from support.engines import Shape
from support.matrix import Case, mismatches

from outrider.attention.reference import ReferenceAttention
from outrider.runtime import program
from outrider.step import fill, tape
from outrider.step.buckets import Buckets

PADDED_TAPE = Shape(pad=4, executor="tape", depth=1, step_tokens=11)


def plan_attention_before_padding(monkeypatch):
    """The attention part is made for the batch as it was before `fit` padded it."""
    fit, bind, exact = Buckets.fit, ReferenceAttention.bind, {}

    def remembering_fit(self, batch, *, warps):
        shape = fit(self, batch, warps=warps)
        exact[shape] = fit(Buckets(page_size=self.page_size), batch, warps=warps)
        return shape

    monkeypatch.setattr(Buckets, "fit", remembering_fit)
    monkeypatch.setattr(
        ReferenceAttention, "bind", lambda self, arena, shape: bind(self, arena, exact[shape])
    )


def read_results_out_of_the_executors_buffers(monkeypatch):
    """A result is not copied, so the next replay overwrites it before it is read."""
    monkeypatch.setattr(torch.Tensor, "clone", lambda self: self)


def fill_attention_only_once(monkeypatch):
    """Metadata counts as ready because some earlier step made it so."""
    fill_uniform, done = ReferenceAttention._fill_uniform, set()

    def once(self, group, geometry):
        if group.mask.shape not in done:
            done.add(group.mask.shape)
            fill_uniform(self, group, geometry)

    monkeypatch.setattr(ReferenceAttention, "_fill_uniform", once)


def freeze_lengths_while_recording(monkeypatch):
    """Lengths pass through the host, where a recording cannot follow them."""

    def through_the_host(plan, table):
        lengths = table.lengths[plan.uniform.rows].tolist()
        plan.uniform.lengths.copy_(torch.tensor(lengths, dtype=torch.int64))

    monkeypatch.setattr(program, "resolve_lengths", through_the_host)


def draw_noise_one_position_early(monkeypatch):
    original = fill._fill_sampled

    def early(plan):
        original(plan)
        plan.sampled.positions.sub_(1)

    monkeypatch.setattr(fill, "_fill_sampled", early)


def draw_noise_of_another_row(monkeypatch):
    original = fill._fill_sampled

    def shifted(plan):
        original(plan)
        plan.sampled.rows.copy_(plan.sampled.rows.roll(1))

    monkeypatch.setattr(fill, "_fill_sampled", shifted)


def forget_to_refresh_what_an_operation_returned(monkeypatch):
    """A tape that replays but leaves the fixed outputs as they were."""
    monkeypatch.setattr(tape._Operation, "replay", lambda self: self.call(*self.args))


def count_the_prompts_last_token_as_cached(monkeypatch):
    """An off-by-one between what is cached and what is known."""
    original = program.commit

    def off_by_one(plan, verdict, chunk_choice, *, table, kv):
        original(plan, verdict, chunk_choice, table=table, kv=kv)
        table.lengths.index_add_(0, plan.chunk.rows, (plan.chunk.rows > 0).long())

    monkeypatch.setattr(program, "commit", off_by_one)


MUTATIONS = [
    plan_attention_before_padding,
    read_results_out_of_the_executors_buffers,
    fill_attention_only_once,
    freeze_lengths_while_recording,
    draw_noise_one_position_early,
    draw_noise_of_another_row,
    forget_to_refresh_what_an_operation_returned,
    count_the_prompts_last_token_as_cached,
]


@pytest.mark.parametrize("law", ["greedy", "sampled", "warped"])
def test_the_unharmed_engine_passes_where_mutants_are_caught(tiny, law):
    assert not mismatches(*tiny, Case(PADDED_TAPE, is_prefix_hit=False, law=law))


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_the_matrix_catches(tiny, monkeypatch, mutate):
    mutate(monkeypatch)
    caught = []
    for law in ("greedy", "sampled", "warped"):
        try:
            caught += mismatches(*tiny, Case(PADDED_TAPE, is_prefix_hit=False, law=law))
        except (RuntimeError, IndexError) as error:  # some mistakes do not even run
            caught.append(str(error))
    assert caught
