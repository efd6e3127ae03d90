"""Known mistakes, put back one at a time: the matrix must notice each of them."""

from dataclasses import replace

import pytest
import torch
from support.engines import Shape
from support.matrix import SAMPLINGS, Case, mismatches, run_case

from outrider.kv.reference_attention import ReferenceAttention
from outrider.ops.sampling import top_tokens
from outrider.runtime import program, runner
from outrider.runtime.runner import Runner
from outrider.spec import commit
from outrider.spec.draft_plans import DraftPlanner
from outrider.spec.draft_slots import DraftSlots
from outrider.spec.model_drafter import ModelDrafter
from outrider.step import fill_plan
from outrider.step import tape_executor as tape
from outrider.step.buckets import Buckets

PADDED_TAPE = Shape(pad=4, executor="tape", depth=1, step_tokens=11)


def plan_attention_before_padding(monkeypatch):
    """The attention part is made for the batch as it was before `fit` padded it."""
    fit, bind, exact = Buckets.fit, ReferenceAttention.bind, {}

    def remembering_fit(self, batch, *, sampling_flags):
        shape = fit(self, batch, sampling_flags=sampling_flags)
        exact[shape] = fit(Buckets(page_size=self.page_size), batch, sampling_flags=sampling_flags)
        return shape

    monkeypatch.setattr(Buckets, "fit", remembering_fit)
    monkeypatch.setattr(
        ReferenceAttention, "bind", lambda self, arena, shape: bind(self, arena, exact[shape])
    )


def read_results_out_of_the_executors_buffers(monkeypatch):
    """A result is not copied, so the next replay overwrites it before it is read."""
    monkeypatch.setattr(runner, "copy_to_host", lambda packed: packed)


def fill_attention_only_once(monkeypatch):
    """Metadata counts as ready because some earlier step made it so."""
    fill_decode, done = ReferenceAttention._fill_decode, set()

    def once(self, group, scope):
        if group.mask.shape not in done:
            done.add(group.mask.shape)
            fill_decode(self, group, scope)

    monkeypatch.setattr(ReferenceAttention, "_fill_decode", once)


def freeze_lengths_while_recording(monkeypatch):
    """Lengths pass through the host, where a recording cannot follow them."""

    def through_the_host(plan, table):
        lengths = table.lengths[plan.decode.rows].tolist()
        plan.decode.lengths.copy_(torch.tensor(lengths, dtype=torch.int64))

    monkeypatch.setattr(program, "resolve_lengths", through_the_host)


def draw_noise_one_position_early(monkeypatch):
    original = fill_plan.fill_queries

    def early(*parts, sampled, **others):
        original(*parts, sampled=sampled, **others)
        sampled.positions.sub_(1)

    monkeypatch.setattr(fill_plan, "fill_queries", early)


def draw_noise_of_another_row(monkeypatch):
    original = fill_plan.fill_queries

    def shifted(*parts, sampled, **others):
        original(*parts, sampled=sampled, **others)
        sampled.rows.copy_(sampled.rows.roll(1))

    monkeypatch.setattr(fill_plan, "fill_queries", shifted)


def forget_to_refresh_what_an_operation_returned(monkeypatch):
    """A tape that replays but leaves the fixed outputs as they were."""
    monkeypatch.setattr(
        tape._Operation, "replay", lambda self: self.call(*self.args, **self.kwargs)
    )


def count_the_prompts_last_token_as_cached(monkeypatch):
    """An off-by-one between what is cached and what is known."""
    original = program.commit

    def off_by_one(plan, verify_result, chunk_choice, *, table, kv):
        original(plan, verify_result, chunk_choice, table=table, kv=kv)
        table.lengths.index_add_(0, plan.chunk.rows, (plan.chunk.rows > 0).long())

    monkeypatch.setattr(program, "commit", off_by_one)


def write_all_draft_steps_to_the_same_slots(monkeypatch):
    """The scratch region is not cut into steps."""
    monkeypatch.setattr(DraftSlots, "first_node", lambda self, step: 0)


def swap_scratch_between_rows(monkeypatch):
    bind = DraftPlanner.bind

    def swapped(self, shape, decode, chunk):
        other = replace(decode, rows=decode.rows.roll(1))
        return replace(
            bind(self, shape, decode, chunk), level=bind(self, shape, other, chunk).level
        )

    monkeypatch.setattr(DraftPlanner, "bind", swapped)


def leave_accepted_kv_where_the_tree_put_it(monkeypatch):
    monkeypatch.setattr(commit, "compact_kv", lambda storage, decode, verify_result, pages: None)


def skip_every_second_catch_up(monkeypatch):
    observe, calls = ModelDrafter.observe, []

    def sometimes(self, plan, outcome, table):
        calls.append(1)
        if len(calls) % 2:
            observe(self, plan, outcome, table)

    monkeypatch.setattr(ModelDrafter, "observe", sometimes)


def take_the_hosts_bound_for_the_length(monkeypatch):
    """The host assumes that everything it planned for was accepted."""
    submit, bounds = Runner.submit, []

    def remembering(self, batch):
        bounds[:] = batch.decodes.bounds
        return submit(self, batch)

    def from_the_host(plan, table):
        padded = bounds + [0] * (plan.shape.rows - len(bounds))
        plan.decode.lengths.copy_(torch.tensor(padded, dtype=torch.int64))

    monkeypatch.setattr(Runner, "submit", remembering)
    monkeypatch.setattr(program, "resolve_lengths", from_the_host)


def draft_with_noise_of_another_position(monkeypatch):
    """The coupling is lost: the drafter samples well, but not what the target will sample."""
    original = top_tokens.gumbel_at
    monkeypatch.setattr(
        top_tokens,
        "gumbel_at",
        lambda seeds, positions, tokens: original(seeds, positions + 1, tokens),
    )


def forget_that_a_whole_model_runs_ahead(monkeypatch):
    """Catch-up of a standalone model lands one position early."""
    facts = ModelDrafter.facts.fget
    monkeypatch.setattr(ModelDrafter, "facts", property(lambda self: replace(facts(self), lead=0)))
    original = ModelDrafter.__init__

    def forgetful(self, model, **parts):
        original(self, model, **parts)
        self._facts = replace(self._facts, lead=0)

    monkeypatch.setattr(ModelDrafter, "__init__", forgetful)


ALWAYS = [Case(PADDED_TAPE, is_prefix_hit=False, sampling=sampling) for sampling in SAMPLINGS]
EAGER = replace(PADDED_TAPE, executor="eager", step_tokens=40)
SPECULATIVE = [
    Case(shape, is_prefix_hit=False, sampling=sampling, drafter=drafter, tree=tree)
    for shape in (EAGER, replace(EAGER, executor="tape"))
    for sampling in SAMPLINGS
    for drafter, tree in [("twin", "chain"), ("relative", "tree")]
]
MUTATIONS = [
    (read_results_out_of_the_executors_buffers, ALWAYS),
    (fill_attention_only_once, ALWAYS),
    (freeze_lengths_while_recording, ALWAYS),
    (draw_noise_one_position_early, ALWAYS),
    (draw_noise_of_another_row, ALWAYS),
    (forget_to_refresh_what_an_operation_returned, ALWAYS),
    (count_the_prompts_last_token_as_cached, ALWAYS),
    (write_all_draft_steps_to_the_same_slots, SPECULATIVE),
    (swap_scratch_between_rows, SPECULATIVE),
    (leave_accepted_kv_where_the_tree_put_it, SPECULATIVE),
    (skip_every_second_catch_up, SPECULATIVE),
    (take_the_hosts_bound_for_the_length, SPECULATIVE),
    (draft_with_noise_of_another_position, SPECULATIVE),
    (forget_that_a_whole_model_runs_ahead, SPECULATIVE),
]


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("case", [*ALWAYS, *SPECULATIVE], ids=str)
def test_the_unharmed_engine_passes_where_mutants_are_caught(models, case):
    assert not mismatches(models, case)


@pytest.mark.parametrize(
    ("mutate", "cases"), MUTATIONS, ids=[mutate.__name__ for mutate, _ in MUTATIONS]
)
def test_the_matrix_catches(models, monkeypatch, mutate, cases):
    """A wrong answer or a lost draft; a mutant that does not even run proves nothing."""
    mutate(monkeypatch)
    assert any(mismatches(models, case) for case in cases)


def test_planning_attention_before_padding_does_not_even_run(models, monkeypatch):
    plan_attention_before_padding(monkeypatch)
    outputs = run_case(models, ALWAYS[0])
    assert {one.last.finish for one in outputs.values()} == {"error"}
    assert any(word in one.last.reason for one in outputs.values() for word in ("shape", "size"))
