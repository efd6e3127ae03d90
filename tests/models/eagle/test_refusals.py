"""One broken head for every kind of fault. The loader refuses what the report lists."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.heads import write_head
from support.tiny import save_tiny

from outrider.errors import ConfigError
from outrider.models.model_config import read_config

O_PROJ = "midlayer.self_attn.o_proj.weight"
IDS = "eagle_aux_hidden_state_layer_ids"
VOCAB = 67


def edit(folder, **changes):
    """Change tensors by stored name; None removes a tensor."""
    path = folder / "model.safetensors"
    tensors = load_file(path) | changes
    save_file({n: t for n, t in tensors.items() if t is not None}, path)


def configure(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def stored(folder, name):
    return load_file(folder / "model.safetensors")[name]


def refused(target, folder, words):
    """Checks that the loader refuses with one line, and that the report lists the same problem."""
    report = target.inspect(folder)
    assert any(words in problem for problem in report.problems), report.problems
    with pytest.raises(ConfigError) as caught:
        target.load(folder)
    message = str(caught.value)
    assert report.problems[0] in message
    assert "\n" not in message
    return report


@pytest.fixture
def head(target, tmp_path):
    return write_head(tmp_path / "head", target.config)


TENSOR_FAULTS = {
    "missing": (
        {O_PROJ: None},
        "lacks tensors (1): layers.0.self_attn.o_proj.weight",
    ),
    "unexpected": (
        {"midlayer.extra.weight": torch.zeros(3)},
        "unexpected tensors (1): layers.0.extra.weight",
    ),
    "mis-shaped": (
        {O_PROJ: torch.zeros(32, 33)},
        "layers.0.self_attn.o_proj.weight [32, 33] instead of [32, 32]",
    ),
    "quantised": (
        {O_PROJ: torch.zeros(32, 32, dtype=torch.int8)},
        "layers.0.self_attn.o_proj.weight of type torch.int8",
    ),
    "quantised to 8-bit floats": (
        {O_PROJ: torch.zeros(32, 32, dtype=torch.float8_e4m3fn)},
        "layers.0.self_attn.o_proj.weight of type torch.float8_e4m3fn",
    ),
    "stored twice": (
        {"layers.0.self_attn.o_proj.weight": torch.zeros(32, 32)},
        "twice",
    ),
    "a bias that the config does not have": (
        {"midlayer.self_attn.o_proj.bias": torch.zeros(32)},
        "unexpected tensors (1): layers.0.self_attn.o_proj.bias",
    ),
    "one of two head norms": (
        {"midlayer.self_attn.q_norm.weight": torch.ones(8)},
        "lacks tensors (1): layers.0.self_attn.k_norm.weight",
    ),
    "a parallel drafter's mask": (
        {"mask_hidden": torch.zeros(1, 96)},
        "unexpected tensors (1): mask_hidden",
    ),
    "no map": ({"d2t": None}, "lacks tensors (1): d2t"),
}


@pytest.mark.parametrize("fault", TENSOR_FAULTS)
def test_a_tensor_fault_is_refused_by_name(fault, target, head):
    changes, words = TENSOR_FAULTS[fault]
    edit(head, **changes)
    refused(target, head, words)


def test_the_report_sorts_tensors_by_fault(target, head):
    edit(head, **{O_PROJ: None, "extra": torch.zeros(3), "norm.weight": torch.zeros(31)})
    faults = target.inspect(head).tensors
    assert faults.missing == ("layers.0.self_attn.o_proj.weight",)
    assert faults.unused == ("extra",)
    assert faults.mis_shaped == ("norm.weight [31] instead of [32]",)


CONFIG_FAULTS = {
    "wrong target width": ({"target_hidden_size": 48}, "states of width 48, the target's have 32"),
    "another vocabulary": ({"vocab_size": 68}, "a vocabulary of 68, the target has 67"),
    "a layer past the end": ({IDS: [1, 2, 4]}, "after layers 1, 2, 4, the target has 3"),
    "a layer before the start": ({IDS: [1, 2, -1]}, "after layers 1, 2, -1"),
    "layers that are no numbers": ({IDS: ["1"]}, f"integers in {IDS}"),
    "a count that disagrees": ({"num_aux_hidden_states": 4}, "num_aux_hidden_states to 4"),
    "fc_norm without its tensors": ({"fc_norm": True}, "lacks tensors (3): fc_norm.0.weight"),
    "both norms of aux states": ({"fc_norm": True, "norm_before_fc": True}, "keep one of them"),
    "layers that are not stored": ({"num_hidden_layers": 2}, "layers.1."),
    "a scale of logits": ({"logit_scale": 0.5}, "logit_scale"),
    "another activation": ({"hidden_act": "gelu"}, "hidden_act to gelu"),
    "another architecture": ({"architectures": ["Eagle3GPT2LMHeadModel"]}, "Eagle3GPT2"),
    "no architecture": ({"architectures": []}, "must name one architecture"),
    "a speculator of another type": ({"speculators_model_type": "hydra"}, "of type hydra"),
    "a vocabulary of no size": ({"draft_vocab_size": 0}, "positive integer draft_vocab_size"),
    "settings that are no object": ({"eagle_config": 3}, "an object eagle_config"),
    "an unprojected state of another width": (
        {"hidden_size": 48, "target_hidden_size": 32, "eagle_config": {"use_aux_hidden_state": 0}},
        "without a projection",
    ),
}


@pytest.mark.parametrize("fault", CONFIG_FAULTS)
def test_a_config_fault_is_refused_by_name(fault, target, head):
    changes, words = CONFIG_FAULTS[fault]
    configure(head, **changes)
    refused(target, head, words)


def out_of_range(d2t):
    return d2t + VOCAB


def negative(d2t):
    return d2t - VOCAB


def absolute(d2t):
    return torch.arange(len(d2t)) + d2t  # ids in place of offsets


def swapped(d2t):
    ids = torch.arange(len(d2t)) + d2t
    ids[[3, 4]] = ids[[4, 3]]
    return ids - torch.arange(len(d2t))


MAP_FAULTS = {
    out_of_range: "outside the target's 67 tokens",
    negative: "outside the target's 67 tokens",
    absolute: "outside the target's 67 tokens",
    swapped: "strictly increasing",
    torch.Tensor.float: "must hold integers",
}


@pytest.mark.parametrize("corrupt", MAP_FAULTS, ids=lambda f: f.__name__)
def test_a_corrupt_token_map_is_refused(corrupt, target, head):
    edit(head, d2t=corrupt(stored(head, "d2t")))
    refused(target, head, MAP_FAULTS[corrupt])


def test_d2t_and_t2d_that_disagree_are_refused(target, head):
    t2d = stored(head, "t2d")
    edit(head, t2d=t2d.roll(1))
    refused(target, head, "t2d and d2t name different tokens")


def test_a_token_map_of_another_length_is_a_shape_fault(target, head):
    edit(head, d2t=stored(head, "d2t")[:-1])
    refused(target, head, "d2t [43] instead of [44]")


def test_a_missing_bias_that_the_config_has_is_refused_by_name(target, tmp_path):
    write_head(tmp_path, target.config, algorithm="eagle")
    configure(tmp_path, bias=True)
    refused(target, tmp_path, "lacks tensors (1): fc.bias")


def test_an_embedding_of_another_width_must_be_stored(target, tmp_path):
    write_head(tmp_path, target.config, hidden=24)
    edit(tmp_path, **{"embed_tokens.weight": None})
    refused(target, tmp_path, "lacks tensors (1): embed_tokens.weight")


def test_a_head_of_another_model_is_refused_by_its_width(target, tmp_path):
    save_tiny("qwen3", tmp_path / "other")
    other = read_config(tmp_path / "other")
    wide = write_head(tmp_path / "head", other, hidden=48)
    configure(wide, target_hidden_size=48)
    refused(target, wide, "use the target it was trained for")


def test_a_whole_model_is_refused_as_a_head(target):
    refused(target, target.folder, "no draft head")


def test_a_tokenizer_of_another_model_is_refused(target, head, tmp_path):
    write_tokenizer(head, {"a": 0, "b": 1})
    ours = tmp_path / "target"
    ours.mkdir()
    write_tokenizer(ours, {"a": 0, "b": 2})
    moved = type(target)(target.theirs, ours, target.decoder)
    report = refused(moved, head, "token 'b' has id 1 and 2")
    assert report.tokenizer.result == "different"


def write_tokenizer(folder, vocab):
    fields = {"model": {"vocab": vocab}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(fields))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("content", [b"", b"[]", b"\x80\x05garbage"], ids=["empty", "list", "junk"])
def test_a_damaged_file_is_refused_by_name(name, content, target, head):
    (head / name).write_bytes(content)
    refused(target, head, name)


@pytest.mark.parametrize("content", [b"", b"\x80\x02garbage"], ids=["empty", "junk"])
def test_a_damaged_pickle_is_refused_by_name(content, target, tmp_path):
    write_head(tmp_path, target.config, dialect="safeailab")
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    refused(target, tmp_path, "pytorch_model.bin")


def test_a_pickle_that_would_run_code_is_refused(target, tmp_path):
    write_head(tmp_path, target.config, dialect="safeailab")
    torch.save({"fc.weight": print}, tmp_path / "pytorch_model.bin")
    refused(target, tmp_path, "pytorch_model.bin")


def test_a_folder_without_weights_is_refused(target, head):
    (head / "model.safetensors").unlink()
    refused(target, head, "has no model.safetensors")


LATENT_FAULTS = {
    "bias": ({"attention_bias": True}, "sets attention_bias to True"),
    "window": ({"sliding_window": 8}, "gives layers of heads with latents a sliding_window"),
    "no rotation": ({"mla_use_nope": True}, "sets mla_use_nope, which is not supported"),
    "another rank": ({"kv_lora_rank": 22}, "has mis-shaped tensors"),
    "no rank": ({"kv_lora_rank": None}, "kv_lora_rank"),
}


@pytest.mark.parametrize(("changes", "words"), LATENT_FAULTS.values(), ids=LATENT_FAULTS)
def test_a_head_with_latents_that_cannot_run_is_refused(target, tmp_path, changes, words):
    folder = write_head(tmp_path, target.config, has_latents=True)
    configure(folder, **changes)
    refused(target, folder, words)


def test_a_head_of_an_architecture_with_latents_needs_their_tensors(target, tmp_path):
    folder = write_head(tmp_path, target.config, has_latents=True)
    edit(folder, **{"midlayer.self_attn.kv_a_proj_with_mqa.weight": None})
    refused(target, folder, "lacks tensors (1): layers.0.self_attn.kv_a_proj_with_mqa.weight")
