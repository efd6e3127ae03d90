"""Recurrent models in the real engine: speculation, padding, chunks, executors change no token."""

import pytest
from support.heads import write_head
from support.recurrent import CPU
from support.row_equality import RowEquality
from support.row_matrix import CHAIN, Case, mismatches, shape_of

from outrider.models.eagle.head_loader import load_head
from outrider.runtime.draft_kinds import ModelDraft
from outrider.wire.draft_budget import Budget


class TestRecurrent(RowEquality):
    """Of tiny models of all families."""


@pytest.mark.slow
@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("algorithm", ["eagle", "eagle3"])
@pytest.mark.parametrize("executor", ["eager", "tape"])
def test_a_head_drafts_chains_for_it(theirs, target, folder, tmp_path, algorithm, executor):
    """It reads the streams after layers of both kinds."""
    conv_weight = {"layers": (1, 2, 3)} if algorithm == "eagle3" else {}
    write_head(tmp_path, target.config, algorithm=algorithm, **conv_weight)
    head = load_head(tmp_path, target=target, target_folder=folder, dtype="float32", device=CPU)
    draft = ModelDraft(model=head, budget=Budget(steps=3, topk=1, nodes=4))
    shape = shape_of(draft, chunk=7, executor=executor, depth=1, pad=3)
    assert not mismatches(theirs, target, Case("sampled", draft, shape))


@pytest.mark.slow
def test_layers_that_plan_for_themselves_change_no_token(theirs, target):
    """The plan of recurrent states is filled once, and that of attention in every such layer."""
    shape = shape_of(CHAIN, chunk=7, depth=1, pad=3, attention="per_layer")
    assert not mismatches(theirs, target, Case("sampled", CHAIN, shape))
