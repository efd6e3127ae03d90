"""An exported block head has the files, names and fields that vLLM and SGLang read.

Facts from their loaders: vllm/model_executor/models/qwen3_{dflash,dspark}.py,
vllm/v1/worker/gpu/spec_decode/{utils,eagle/eagle3_utils}.py, sglang/srt/models/{dflash,dspark}.py,
sglang/srt/speculative/{dflash_utils,dspark_components/dspark_config}.py.
"""

import json
import shutil

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from support.block_heads import BlockOracle, BlockVariant
from support.block_rounds import BlockRounds
from support.engines import Shape
from support.tiny import save_tiny
from support.training import DEVICE
from transformers import AutoConfig

from outrider.errors import ConfigError
from outrider.models.decoder_loader import load_decoder
from outrider.models.eagle.head_loader import load_head
from outrider.models.model_config import read_config
from outrider.train.checkpoints import TrainingCheckpoint
from outrider.train.export_head import export_head
from outrider.train.head_design import BlockDesign, block_fields, design_config
from outrider.train.mask_token import choose_mask_token
from outrider.train.packed_target import PackedTarget
from outrider.train.training_block import initial_block_weights

VOCAB, WIDTH, RANK, LAYERS = 67, 32, 6, 2
SIZES = {"layers": LAYERS, "block": 5, "intermediate": 40, "heads": 4, "kv_heads": 2}
DFLASH = BlockDesign(**SIZES, is_next=False, is_causal=False, markov_rank=0, has_confidence=False)
DSPARK = BlockDesign(**SIZES, is_next=True, is_causal=True, markov_rank=RANK, has_confidence=True)
DESIGNS = {"dflash": DFLASH, "dspark": DSPARK}
VARIANTS = {
    "dflash": BlockVariant(layers=(1, 2)),
    "dspark": BlockVariant(
        layers=(1, 2), is_next=True, is_causal=True, markov_rank=RANK, has_confidence=True
    ),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    return folder, save_tiny("llama", folder)


def export(design, folder, target_folder):
    """A head as a run leaves it. Returns its weights."""
    fields = block_fields(design, target_folder)
    config = design_config(fields, read_config(target_folder))
    weights = initial_block_weights(config, PackedTarget(target_folder, DEVICE), seed=3)
    generator = torch.Generator().manual_seed(1)
    values = {
        name: each.detach() + 0.3 * torch.randn(each.shape, generator=generator)
        for name, each in weights.items()
    }
    state = {f"weights.{name}": each for name, each in values.items()}
    checkpoint = TrainingCheckpoint(
        step=1, facts={"fields": fields}, state_dict=state, ids=torch.arange(VOCAB)
    )
    export_head(checkpoint, folder, target_folder=target_folder, format="eagle3", dtype="float32")
    return values


def vllm_mask_token(config):
    """Where vLLM looks for it, in this order; without one it raises."""
    inner = getattr(config, "dflash_config", None) or {}
    keys = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
    places = [inner.get("mask_token_id"), *(getattr(config, key, None) for key in keys)]
    return next(token for token in places if token is not None)


def sglang_field(config, key):
    """SGLang reads the inner config first, then the outer one."""
    inner = getattr(config, "dflash_config", None) or {}
    return inner.get(key, getattr(config, key, None))


LAYER = {
    "input_layernorm.weight": [WIDTH],
    "post_attention_layernorm.weight": [WIDTH],
    "self_attn.q_proj.weight": [32, WIDTH],
    "self_attn.k_proj.weight": [16, WIDTH],
    "self_attn.v_proj.weight": [16, WIDTH],
    "self_attn.o_proj.weight": [WIDTH, 32],
    "self_attn.q_norm.weight": [8],
    "self_attn.k_norm.weight": [8],
    "mlp.gate_proj.weight": [40, WIDTH],
    "mlp.up_proj.weight": [40, WIDTH],
    "mlp.down_proj.weight": [WIDTH, 40],
}
AROUND = {
    "fc.weight": [WIDTH, 2 * WIDTH],
    "hidden_norm.weight": [WIDTH],
    "norm.weight": [WIDTH],
}
SMALL_HEADS = {
    "markov_head.markov_w1.weight": [VOCAB, RANK],
    "markov_head.markov_w2.weight": [VOCAB, RANK],
    "confidence_head.proj.weight": [1, WIDTH + RANK],
    "confidence_head.proj.bias": [1],
}


@pytest.mark.parametrize("kind", DESIGNS)
def test_an_export_has_what_the_loaders_of_other_engines_read(target, tmp_path, kind):
    export(DESIGNS[kind], tmp_path / "head", target[0])
    stored = {name: list(each.shape) for name, each in _stored(tmp_path / "head").items()}
    layers = {f"layers.{i}.{name}": shape for i in range(LAYERS) for name, shape in LAYER.items()}
    assert stored == layers | AROUND | (SMALL_HEADS if kind == "dspark" else {})
    # SGLang reads no vector of masks, and vLLM's DSpark drops it.
    assert {each.name for each in (tmp_path / "head").iterdir()} == {
        "config.json",
        "model.safetensors",
    }
    config = AutoConfig.from_pretrained(tmp_path / "head")
    own = json.loads((tmp_path / "head" / "config.json").read_text())
    assert vllm_mask_token(config) == sglang_field(config, "mask_token_id") == VOCAB - 1
    assert sglang_field(config, "target_layer_ids") == [0, 1]  # + 1: after so many layers
    assert sglang_field(config, "block_size") == 5
    assert config.num_target_layers == 3
    # SGLang: `is_causal` of the outer config, and only of layers that have a type.
    assert config.is_causal == (kind == "dspark")
    assert config.layer_types == own["layer_types"] == ["full_attention"] * LAYERS
    assert config.rope_parameters["rope_theta"] == own["rope_theta"] == 10000.0
    if kind == "dflash":
        assert config.architectures == ["DFlashDraftModel"]
        assert {"mask_token_id", "target_layer_ids"} <= config.dflash_config.keys()
        assert not config.dflash_config.get("sample_from_anchor")  # vLLM raises
    else:
        assert config.architectures == ["Qwen3DSparkModel"]
        assert config.sample_from_anchor
        assert config.markov_rank == RANK  # SGLang refuses 0, and asks for the type
        assert config.markov_head_type == "vanilla"
        assert config.enable_confidence_head
        assert config.confidence_head_with_markov


@pytest.mark.parametrize("kind", DESIGNS)
def test_an_exported_head_drafts_as_its_weights_do(target, tmp_path, monkeypatch, kind):
    folder, theirs = target
    weights = export(DESIGNS[kind], tmp_path / "head", folder)
    mask = theirs.model.embed_tokens.weight.detach()[VOCAB - 1]
    cpu = torch.device("cpu")
    ours = load_decoder(folder, dtype="float32", device=cpu)
    head = load_head(
        tmp_path / "head", target=ours, target_folder=folder, dtype="float32", device=cpu
    )
    oracle = BlockOracle(theirs, VARIANTS[kind], weights | {"mask_embedding": mask})
    steps = DESIGNS[kind].num_drafts
    rounds = BlockRounds(target=ours, head=head, oracle=oracle, steps=steps)
    assert not rounds.mistakes(monkeypatch, Shape(page_size=4, step_tokens=64, max_rows=1))


def _stored(folder):
    return load_file(folder / "model.safetensors")


def write_tokenizer(folder, words, special=()):
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(vocab={word: i for i, word in enumerate(words)}, unk_token="a")
    )
    backend.add_special_tokens(list(special))
    backend.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<end>", "chat_template": "<turn>{{ messages[0].content }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("words", "special", "chosen"),
    [
        (60, [], 60),  # the first id that the tokenizer does not use, as heads for Qwen3 have it
        (60, ["<|MASK|>"], 60),
        (65, ["<|MASK|>", "<end>"], 65),
        (63, ["<spare>", "<other>", "<turn>", "<end>"], 64),  # not of a template, not the end
        (67, [], 66),
    ],
)
def test_masks_are_a_token_that_texts_do_not_contain(target, tmp_path, words, special, chosen):
    shutil.copytree(target[0], tmp_path, dirs_exist_ok=True)
    write_tokenizer(tmp_path, [*"ab", *(f"w{i}" for i in range(words - 2))], special)
    assert choose_mask_token(tmp_path, read_config(tmp_path)) == chosen


def test_masks_are_no_token_whose_embedding_is_zero(target, tmp_path):
    shutil.copytree(target[0], tmp_path, dirs_exist_ok=True)
    write_tokenizer(tmp_path, [*"ab", *(f"w{i}" for i in range(60))])
    weights = _stored(tmp_path)
    weights["model.embed_tokens.weight"][62:64] = 0
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert choose_mask_token(tmp_path, read_config(tmp_path)) == 64


def test_a_block_head_is_exported_in_its_own_layout_only(target, tmp_path):
    fields = block_fields(DFLASH, target[0])
    checkpoint = TrainingCheckpoint(
        step=1, facts={"fields": fields}, state_dict={}, ids=torch.arange(VOCAB)
    )
    with pytest.raises(ConfigError, match="omit --format"):
        export_head(
            checkpoint,
            tmp_path / "head",
            target_folder=target[0],
            format="speculators",
            dtype="float32",
        )
