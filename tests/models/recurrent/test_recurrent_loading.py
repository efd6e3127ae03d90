"""Folders of recurrent models are read strictly, and what cannot work is refused with the fix."""

import json
import logging
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engines import NO_DRAFT, Shape, engine_of
from support.recurrent import (
    CPU,
    FULL,
    STATE,
    expected_logits,
    harness_of,
    prompt,
    saved_recurrent,
)
from support.row_matrix import CHAIN, shape_of
from support.tiny import save_tiny
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

from outrider import LLM
from outrider.bench.offline.decode_floor import kv_bytes
from outrider.bench.perplexity import Scorer
from outrider.errors import ConfigError
from outrider.models.decoder_loader import load_decoder
from outrider.models.model_config import read_config
from outrider.models.target import load_target
from outrider.runtime.draft_kinds import NgramDraft
from outrider.wire.draft_budget import Budget

OLD_ROPE = {"rope_parameters": None, "rope_theta": 1e4, "partial_rotary_factor": 0.25}


@pytest.fixture
def changed(folders, tmp_path):
    """A copy of a tiny Qwen3-Next with other fields or tensors."""
    source = folders["qwen3-next"]
    saved_recurrent(source, "qwen3-next")

    def make(fields=(), tensors=lambda stored: stored):
        shutil.copytree(source, tmp_path, dirs_exist_ok=True)
        path = tmp_path / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | dict(fields)))
        stored = tensors(load_file(tmp_path / "model.safetensors"))
        save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
        return tmp_path

    return make


def test_the_interval_of_older_files_says_which_layers_attend(changed):
    folder = changed({"layer_types": None, "full_attention_interval": 3})
    assert read_config(folder).attending == (2,)
    assert read_config(changed({"layer_types": None})).attending == (3,)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"layer_types": [STATE] * 5}, "both must be there"),
        ({"layer_types": [STATE, FULL]}, "each of the 5 layers"),
        ({"linear_num_value_heads": 5}, "must be a multiple"),
        ({"linear_conv_kernel_dim": 0}, "linear_conv_kernel_dim"),
        ({"shared_expert_intermediate_size": None}, "shared_expert_intermediate_size"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"layer_types": "mamba"}, "layer_types"),
        ({"layer_types": [[STATE]] * 5}, "layer_types"),
        ({"attention_bias": True}, "attention_bias"),
        ({"attn_output_gate": False}, "attn_output_gate"),
        ({"output_gate_type": "sigmoid"}, "output_gate_type"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope scaling of type dynamic"),
        ({"mlp_only_layers": [9]}, "mlp_only_layers"),
    ],
    ids=str,
)
def test_a_field_that_cannot_be_is_refused_by_name(changed, fields, said):
    with pytest.raises(ConfigError, match=said):
        read_config(changed(fields))


def test_long_texts_have_the_logits_of_transformers(changed):
    """As the model card of Qwen3-Next says for a million tokens."""
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    folder, tokens = changed({"rope_scaling": scaling, **OLD_ROPE}), prompt(40)
    theirs = Qwen3NextForCausalLM.from_pretrained(folder).eval()
    assert theirs.config.rope_parameters["rope_type"] == "yarn"
    logits = harness_of(folder).run({}, {1: (0, tokens)})
    assert (logits - expected_logits(theirs, tokens)).abs().max() <= 1e-4


@pytest.mark.parametrize(("said", "is_normed"), [(None, True), (True, True), (False, False)])
def test_weights_of_experts_sum_to_one_unless_the_file_says_otherwise(changed, said, is_normed):
    config = read_config(changed({"norm_topk_prob": said}))
    theirs = Qwen3NextConfig(**({} if said is None else {"norm_topk_prob": said}))
    assert config.experts.routing.is_normed == theirs.norm_topk_prob == is_normed


def test_a_base_frequency_beside_rope_parameters_counts(changed):
    inside = {"rope_type": "default", "partial_rotary_factor": 0.25}
    assert read_config(changed({"rope_parameters": inside, "rope_theta": 5e5})).rope.theta == 5e5
    both = {"rope_parameters": inside | {"rope_theta": 1e6}, "rope_theta": 5e5}
    assert read_config(changed(both)).rope.theta == 1e6


@pytest.mark.parametrize("fields", [{}, {"num_nextn_predict_layers": 1}], ids=str)
def test_a_folder_that_lost_its_module_says_so_when_it_is_to_draft(changed, fields):
    with pytest.raises(ConfigError, match=r"no draft module.*use the model's own weights"):
        LLM(changed(fields), draft="mtp", adaptive=False, device="cpu", max_model_len=64)


def without(name):
    return lambda stored: {key: each for key, each in stored.items() if key != name}


@pytest.mark.parametrize(
    "name", ["linear_attn.A_log", "linear_attn.in_proj_ba.weight", "mlp.shared_expert_gate.weight"]
)
def test_a_missing_tensor_is_refused_by_name(changed, name):
    place = f"model.layers.0.{name}"
    with pytest.raises(ConfigError, match=place):
        load_target(changed(tensors=without(place)), dtype="float32", device=CPU)


def test_a_folder_in_bfloat16_is_computed_nearly_alike(folders):
    theirs, tokens = saved_recurrent(folders["qwen3-next"], "qwen3-next"), prompt(20)
    logits = harness_of(folders["qwen3-next"], dtype="bfloat16").run({}, {1: (0, tokens)})
    right = expected_logits(theirs, tokens)
    assert (logits - right).abs().mean() < 0.1 * right.abs().mean()


def test_trees_are_refused_with_the_fix(target):
    tree = NgramDraft(budget=Budget(steps=2, topk=2, nodes=5), min_match=1, max_match=4)
    with pytest.raises(ConfigError, match="--topk 1"):
        engine_of(target, shape_of(tree, chunk=7), tree)


def test_chains_longer_than_what_is_kept_pending_are_refused_with_the_fix(target):
    long = NgramDraft(budget=Budget(steps=16, topk=1, nodes=17), min_match=1, max_match=4)
    with pytest.raises(ConfigError, match="--nodes 16, or drafts of 15 steps"):
        engine_of(target, shape_of(long, chunk=7), long)


def test_prefix_caching_needs_room_for_snapshots(target, caplog):
    with caplog.at_level(logging.INFO):
        assert engine_of(target, Shape(), NO_DRAFT).facts.host.prefix_cache
    assert "prefix caching is off" not in caplog.text
    with caplog.at_level(logging.INFO):
        engine = engine_of(target, Shape(row_snapshots=0), NO_DRAFT)
    assert "raise --row-snapshots" in caplog.text
    assert not engine.facts.host.prefix_cache


def test_more_snapshots_than_fit_are_refused_with_the_number_that_would(target):
    with pytest.raises(ConfigError, match="lower --row-snapshots to"):
        engine_of(target, Shape(row_snapshots=100_000_000), NO_DRAFT)


def test_rows_that_do_not_fit_are_refused_with_the_number_that_would(target):
    with pytest.raises(ConfigError, match="lower max_num_seqs to"):
        engine_of(target, shape_of(CHAIN, chunk=7, max_rows=100_000_000), CHAIN)


def test_it_is_refused_as_a_draft_model(folders, tmp_path):
    saved_recurrent(folders["qwen3-next"], "qwen3-next")
    save_tiny("llama", tmp_path)
    with pytest.raises(ConfigError, match="--draft mtp or --draft ngram"):
        LLM(
            tmp_path,
            draft=str(folders["qwen3-next"]),
            adaptive=False,
            device="cpu",
            max_model_len=64,
        )


def test_it_scores_no_texts(target):
    with pytest.raises(ConfigError, match="whose layers all attend"):
        Scorer(target, max_tokens=8)


def test_the_past_of_a_row_is_what_the_floor_counts(target):
    layout = target.layout(page_size=16, nodes=1)
    states = kv_bytes(target.config, "float32", batch=1, context=0.0)
    assert states == 2 * 3 * 6 * 12 * 10 * 4  # read and written: layers, heads, keys, values
    assert layout.row_bytes > states / 2
    token = kv_bytes(target.config, "float32", batch=1, context=1.0) - states
    assert token * 16 == layout.kv.page_bytes


def test_unknown_tensors_are_refused_unless_a_module_has_them(changed):
    load_decoder(
        changed(tensors=lambda stored: stored | {"mtp.anything": torch.zeros(3)}),
        dtype="float32",
        device=CPU,
    )
    extra = {"model.layers.0.linear_attn.extra": torch.zeros(3)}
    with pytest.raises(ConfigError, match=r"linear_attn\.extra"):
        load_decoder(changed(tensors=lambda stored: stored | extra), dtype="float32", device=CPU)
