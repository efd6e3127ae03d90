"""Draft heads on DeepSeek-V4: they read the mean of its residual streams after some layers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from support.block_heads import BLOCKS, write_block_head
from support.engines import Shape, engine_of
from support.head_oracle import Oracle
from support.head_rounds import CHAIN, mistakes
from support.heads import Variant, write_head
from support.medusa_models import MedusaVariant, write_medusa
from support.row_chats import saving
from support.row_harness import PAGE_SIZE
from support.row_matrix import Case, run_case, shape_of
from support.row_matrix import mismatches as wrong_answers

from outrider.cli.main import run
from outrider.errors import ConfigError
from outrider.models.any_head import load_any_head
from outrider.models.deepseek_v4 import v4_decoder
from outrider.runtime.draft_kinds import BlockDraft, ModelDraft

VARIANTS = {
    "eagle": Variant(algorithm="eagle"),
    "eagle3": Variant(),
    "first and last layers": Variant(layers=(0, 5, 1), fc_norm=True),
    "latents": Variant(has_latents=True, query_rank=14),
}


@dataclass(frozen=True)
class Models:
    theirs: Any
    target: Any
    folder: Path


class StreamsOracle(Oracle):
    """The states of the target are found by hooks, one for each layer."""

    def aux_hidden_states(self, tokens):
        model, variant, found = self._model.model, self._variant, []
        hooks = [
            layer.register_forward_hook(lambda module, args, output: found.append(output[0]))
            for layer in model.layers
        ]
        final = model(torch.tensor([tokens])).last_hidden_state[0]
        for hook in hooks:
            hook.remove()
        if variant.algorithm == "eagle":
            return final
        num = len(found)
        means = [model.embed_tokens(torch.tensor(tokens)), *(each.mean(1) for each in found)]
        return torch.cat([means[k] for k in variant.layers or (2, num // 2, num - 3)], -1)


@pytest.fixture
def models(theirs, target, folder):
    return Models(theirs, target, folder)


def load(models, head):
    return load_any_head(head, models.target, models.folder, dtype="float32", arithmetic="fast")


@pytest.fixture
def draft(models, tmp_path):
    """An EAGLE-3 head, ready to draft."""
    head = load(models, write_head(tmp_path / "head", models.target.config))
    return ModelDraft(model=head, budget=CHAIN)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("is_prefix_hit", [False, True], ids=["cold", "hit"])
@pytest.mark.parametrize("step_tokens", [7, 64])
@pytest.mark.parametrize("name", VARIANTS)
def test_proposals_follow_from_the_text_alone(
    models, monkeypatch, tmp_path, name, step_tokens, is_prefix_hit
):
    shape = Shape(page_size=PAGE_SIZE, step_tokens=step_tokens, max_rows=1)
    wrong = mistakes(
        models,
        monkeypatch,
        tmp_path,
        VARIANTS[name],
        shape,
        is_prefix_hit=is_prefix_hit,
        oracle_of=StreamsOracle,
        make_engine=lambda *parts: saving(engine_of(*parts)),
    )
    assert not wrong


def test_proposals_betray_a_head_that_reads_one_stream(models, monkeypatch, tmp_path):
    monkeypatch.setattr(v4_decoder, "mean_of_streams", lambda streams: streams[:, 0])
    shape = Shape(page_size=PAGE_SIZE, step_tokens=64, max_rows=1)
    variant = VARIANTS["eagle3"]
    assert mistakes(models, monkeypatch, tmp_path, variant, shape, oracle_of=StreamsOracle)


@pytest.mark.slow
@pytest.mark.parametrize(("sampling", "executor"), [("greedy", "tape"), ("sampled", "eager")])
def test_drafts_of_a_head_change_no_token(models, draft, sampling, executor):
    shape = shape_of(draft, chunk=7, executor=executor, depth=1, pad=3)
    assert not wrong_answers(models.theirs, models.target, Case(sampling, draft, shape))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dflash", "medusa"])
def test_drafts_of_a_block_change_no_token(models, tmp_path, kind):
    config = models.target.config
    if kind == "medusa":
        write_medusa(tmp_path, config, MedusaVariant())
    else:
        write_block_head(tmp_path, config, BLOCKS[kind])
    draft = BlockDraft(model=load(models, tmp_path), budget=CHAIN)
    shape = shape_of(draft, chunk=7, executor="tape", depth=1, pad=3)
    assert not wrong_answers(models.theirs, models.target, Case("sampled", draft, shape))


@pytest.mark.slow
def test_a_preempted_request_goes_on_with_the_same_tokens(models, draft):
    case = Case("sampled", draft, shape_of(draft, chunk=30, kv_tokens=96))
    outputs = run_case(models.target, case)
    assert sum(entry.last.progress.preemptions for entry in outputs.values()) > 0
    assert not wrong_answers(models.theirs, models.target, case)


def test_the_doctor_says_what_a_head_reads(models, tmp_path, capsys):
    write_head(tmp_path, models.target.config)
    assert run(["doctor", str(tmp_path), "--model", str(models.folder), "--no-probe"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "after 2, 2, 2 of 5 layers, mean of 2 residual streams" in shown
    assert "the head fits" in shown


def test_a_head_that_reads_layers_which_the_target_lacks_is_refused(models, tmp_path):
    write_head(tmp_path, models.target.config, layers=(6,))
    with pytest.raises(ConfigError, match="reads after layers 6, the target has 5"):
        load(models, tmp_path)
