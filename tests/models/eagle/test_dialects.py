"""One head in the formats of several projects loads as the same head."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.heads import DIALECTS, write_head

from outrider.models.draft_model import AuxLayers
from outrider.models.eagle.inspect_head import is_head
from outrider.models.model_config import LatentConfig

NAMES = {"safeailab": "SafeAILab", "sglang": "SGLang", "vllm": "vLLM", "speculators": "speculators"}
EVERY = [(algorithm, dialect) for algorithm in DIALECTS for dialect in DIALECTS[algorithm]]
IDS = "eagle_aux_hidden_state_layer_ids"


def change_config(folder, **changes):
    path = folder / "config.json"
    fields = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in fields.items() if value != "absent"}))


def scores(target, folder):
    """The logits of a head for fixed aux_hidden_states, without its layer."""
    head = target.load(folder)
    torch.manual_seed(0)
    aux_hidden_states = torch.randn(
        5, len(head.facts.aux_layers.layers or (0,)) * target.config.block.hidden
    )
    with torch.inference_mode():
        return head.logits(head.project(aux_hidden_states)), head.target_ids


@pytest.mark.parametrize(("algorithm", "dialect"), EVERY)
def test_a_head_is_recognised_and_loads(algorithm, dialect, target, tmp_path):
    write_head(tmp_path, target.config, dialect=dialect, algorithm=algorithm)
    report = target.inspect(tmp_path)
    assert report.problems == ()
    assert (report.config.origin.dialect, report.config.origin.algorithm) == (
        NAMES[dialect],
        algorithm,
    )
    assert target.load(tmp_path).facts.lead == 0
    assert is_head(tmp_path)


@pytest.mark.parametrize("dialect", DIALECTS["eagle3"])
def test_a_head_with_latents_loads_in_every_dialect(dialect, target, tmp_path):
    write_head(tmp_path, target.config, dialect=dialect, has_latents=True, query_rank=14)
    report = target.inspect(tmp_path)
    assert report.problems == ()
    assert report.config.origin.dialect == NAMES[dialect]
    assert dict(report.facts)["variant"] == "latents (MLA)"
    assert target.load(tmp_path).facts.attention == LatentConfig(
        heads=4, query_rank=14, latent=20, nope=6, rope=4, value=10
    )


@pytest.mark.parametrize("algorithm", DIALECTS)
def test_all_dialects_of_one_head_compute_the_same(algorithm, target, tmp_path):
    flags = {"layers": (1, 2, 3), "fc_norm": True} if algorithm == "eagle3" else {"fc_bias": True}
    folders = [
        write_head(tmp_path / d, target.config, dialect=d, algorithm=algorithm, **flags)
        for d in DIALECTS[algorithm]
    ]
    (first, first_ids), *others = (scores(target, folder) for folder in folders)
    for other, ids in others:
        assert torch.equal(first, other)
        assert torch.equal(first_ids, ids)


@pytest.mark.parametrize("dialect", DIALECTS["eagle3"])
def test_captured_layers_are_equal_in_all_dialects(dialect, target, tmp_path):
    write_head(tmp_path, target.config, dialect=dialect, layers=(1, 3))
    assert target.load(tmp_path).facts.aux_layers == AuxLayers(layers=(1, 3))


def test_layer_ids_count_layers_at_the_top_level_and_name_outputs_when_nested(target, tmp_path):
    write_head(tmp_path, target.config, dialect="vllm")
    change_config(tmp_path, **{IDS: [0, 1, 2]})
    assert target.inspect(tmp_path).config.aux.aux_layers.layers == (0, 1, 2)
    change_config(tmp_path, **{IDS: "absent", "eagle_config": {IDS: [0, 1, 2]}})
    assert target.inspect(tmp_path).config.aux.aux_layers.layers == (1, 2, 3)


def test_two_lists_that_disagree_are_noted_and_the_outer_one_wins(target, tmp_path):
    write_head(tmp_path, target.config, dialect="vllm")
    change_config(tmp_path, **{IDS: [1, 2, 3], "eagle_config": {IDS: [1, 2, 3]}})
    report = target.inspect(tmp_path)
    assert report.config.aux.aux_layers.layers == (1, 2, 3)
    assert any("mean different layers" in note for note in report.notes)


def test_without_a_list_the_usual_layers_are_captured(target, tmp_path):
    write_head(tmp_path, target.config)
    assert target.load(tmp_path).facts.aux_layers == AuxLayers(
        layers=(2, 1, 0)
    )  # of three: 2, 3 // 2, 3 - 3


@pytest.mark.parametrize(
    "place", [{IDS: [1, 0, -1]}, {"eagle_config": {IDS: [2, 1, 0]}}], ids=["outer", "nested"]
)
def test_the_usual_layers_in_the_other_meaning_are_noted(place, target, tmp_path):
    write_head(tmp_path, target.config, dialect="vllm")
    change_config(tmp_path, **place)
    assert any("the other meaning" in note for note in target.inspect(tmp_path).notes)


def test_d2t_holds_offsets_from_draft_ids(target, tmp_path):
    write_head(tmp_path, target.config, draft_vocab=20)
    stored = load_file(tmp_path / "model.safetensors")
    head = target.load(tmp_path)
    assert torch.equal(head.target_ids, torch.arange(20) + stored["d2t"])
    assert torch.equal(stored["t2d"].nonzero().squeeze(1), head.target_ids)


def test_a_head_without_lm_head_uses_the_lm_head_of_the_target(target, tmp_path):
    write_head(tmp_path, target.config, own_head=False)
    head = target.load(tmp_path)
    assert torch.equal(head.target_ids, torch.arange(target.config.vocab_size))
    assert any("lm_head.weight is not stored" in note for note in target.inspect(tmp_path).notes)


def test_a_stored_copy_of_the_embedding_is_shared_with_the_target(target, tmp_path):
    write_head(tmp_path, target.config, own_embedding=True)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["embed_tokens.weight"] = target.decoder.embedding.clone()
    save_file(tensors, tmp_path / "model.safetensors")
    assert target.load(tmp_path)._parts.embedding is target.decoder.embedding


@pytest.mark.parametrize("bias", [True, "absent"])
def test_a_stored_bias_of_fc_is_used_if_the_config_has_it_or_is_silent(bias, target, tmp_path):
    write_head(tmp_path, target.config, algorithm="eagle", fc_bias=True)
    change_config(tmp_path, bias=bias)
    assert target.inspect(tmp_path).config.aux.has_bias
    assert not target.inspect(tmp_path).problems


def test_redundant_tensors_are_ignored(target, tmp_path):
    write_head(tmp_path, target.config, dialect="speculators")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    tensors["verifier_lm_head.weight"] = torch.zeros(3, 3)
    save_file(tensors, tmp_path / "model.safetensors")
    assert not target.inspect(tmp_path).problems


def test_prefixes_of_any_depth_are_stripped(target, tmp_path):
    write_head(tmp_path, target.config)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        {f"draft_model.model.{name}": tensor for name, tensor in tensors.items()},
        tmp_path / "model.safetensors",
    )
    assert not target.inspect(tmp_path).problems


def test_rope_theta_is_the_heads_own_and_10000_by_default(target, tmp_path):
    write_head(tmp_path, target.config, theta=500.0)
    report = target.inspect(tmp_path)
    assert report.config.layer.rope.theta == 500.0
    assert any("rope settings differ" in note for note in report.notes)
    change_config(tmp_path, rope_theta="absent")
    assert target.inspect(tmp_path).config.layer.rope.theta == 10000.0


def test_the_report_says_how_latents_rotate(target, tmp_path):
    write_head(tmp_path, target.config, dialect="vllm", has_latents=True)
    rope = dict(target.inspect(tmp_path).facts)["rope"]
    assert rope == "theta 10000, pairs side by side; target: theta 10000"


def test_fewer_positions_than_the_targets_are_noted(target, tmp_path):
    write_head(tmp_path, target.config)
    change_config(tmp_path, max_position_embeddings=64)
    assert any("64 positions" in note for note in target.inspect(tmp_path).notes)


def test_an_absent_norm_before_residual_is_false_and_noted(target, tmp_path):
    write_head(tmp_path, target.config, dialect="speculators")
    change_config(tmp_path, norm_before_residual="absent")
    report = target.inspect(tmp_path)
    assert not report.config.layer.is_residual_normed
    assert any("norm_before_residual" in note for note in report.notes)


@pytest.mark.parametrize("layers", [(1,), (0, 1, 2, 3)])
def test_the_two_widths_follow_from_the_config(layers, target, tmp_path):
    write_head(tmp_path, target.config, layers=layers, hidden=24)
    config = target.inspect(tmp_path).config
    assert config.aux.width == len(layers) * target.config.block.hidden
    assert config.width == target.load(tmp_path).facts.width == 24


def test_a_whole_model_is_not_a_head(target):
    assert not is_head(target.folder)
