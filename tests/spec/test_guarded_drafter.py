"""A drafter that raises in the middle of an answer leaves the answer as it was."""

import logging

import pytest
import torch
from support.engines import Shape, engine_of, make_submission, run_all
from support.tiny import save_tiny

from outrider.models.decoder_loader import load_decoder
from outrider.models.standalone_draft import StandaloneDraft
from outrider.ops.graph_break import capturing
from outrider.runtime.draft_kinds import ModelDraft, NoDraft
from outrider.spec.drafter import NullDrafter
from outrider.spec.guarded_drafter import GuardedDrafter
from outrider.step.shape import ChunkShape, SamplingFlags, StepShape
from outrider.wire.draft_budget import Budget
from outrider.wire.row_sampling import RowSampling


class FailingDraft(StandaloneDraft):
    """A real draft model until its n-th forward."""

    num_forwards = 0
    fails_at = 10**9

    def forward(self, plan, state, kv, attention):
        FailingDraft.num_forwards += 1
        if FailingDraft.num_forwards >= FailingDraft.fails_at:
            raise RuntimeError("the draft model broke")
        return super().forward(plan, state, kv, attention)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny("llama", folder)
    return load_decoder(folder, dtype="float32", device=torch.device("cpu"))


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("executor", ["eager", "tape"])
@pytest.mark.parametrize("fails_at", range(1, 9))
def test_the_answer_goes_on_by_plain_decoding(target, caplog, monkeypatch, fails_at, executor):
    submissions = [
        make_submission(f"r{i}", [3 + i, 9, 4], RowSampling(seed=i), max_tokens=12)
        for i in range(3)
    ]
    plain = run_all(engine_of(target, Shape()), submissions)
    monkeypatch.setattr(FailingDraft, "num_forwards", 0)
    monkeypatch.setattr(FailingDraft, "fails_at", fails_at)
    draft = ModelDraft(
        model=FailingDraft(target, target_vocab=target.config.vocab_size),
        budget=Budget(steps=3, topk=2, nodes=6),
    )
    with caplog.at_level(logging.ERROR):
        engine = engine_of(target, Shape(executor=executor), draft)
        outputs = run_all(engine, submissions, has_broken_drafter=True)
    assert {k: v.tokens for k, v in outputs.items()} == {k: v.tokens for k, v in plain.items()}
    assert "going on by plain decoding" in caplog.text
    assert engine.num_drafter_failures == 1
    before = FailingDraft.num_forwards
    later = make_submission("later", [3, 9, 4], RowSampling(seed=0), max_tokens=12)
    again = run_all(engine, [later], has_broken_drafter=True)["later"]
    assert again.tokens == plain["r0"].tokens
    assert again.last.progress.drafted == 0  # nothing is drafted or verified in vain
    assert FailingDraft.num_forwards == before


def test_a_failed_capture_does_not_count_as_a_failed_drafter(target):
    class Uncapturable(NullDrafter):
        def propose(self, plan, table):
            raise RuntimeError("no memory for a graph")

    drafter = GuardedDrafter(Uncapturable(NoDraft().facts))
    with capturing(), pytest.raises(RuntimeError, match="no memory for a graph"):
        drafter.propose(None, None)
    assert not drafter.is_broken


def test_padding_as_long_as_the_largest_chunk_reads_no_page_that_is_not_there(target):
    draft = ModelDraft(
        model=StandaloneDraft(target, target_vocab=target.config.vocab_size),
        budget=Budget(steps=2, topk=1, nodes=3),
    )
    engine = engine_of(target, Shape(max_rows=1, max_context=32, step_tokens=400), draft)
    runner = engine._runner
    chunk = ChunkShape(rows=2, tokens=400, width=400)
    runner.dummy_run(
        StepShape(rows=1, tree=draft.budget, chunk=chunk, pages=2, sampling_flags=SamplingFlags())
    )
    assert not runner._program.drafter.is_broken
