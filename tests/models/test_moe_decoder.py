"""Decoders with experts: logits against transformers, config.json, refusals, drafts."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.decoders import expected_logits, harness_of, prompt
from support.engines import Shape, engine_of, make_submission, run_all
from support.matrix import PROMPTS, SAMPLINGS, TREES
from support.reference import decode
from support.tiny import save_tiny, tiny_model

from outrider.errors import ConfigError
from outrider.models.decoder_loader import load_decoder
from outrider.models.expert_config import NoExperts
from outrider.models.model_config import parse_config
from outrider.models.standalone_draft import StandaloneDraft
from outrider.runtime.draft_kinds import ModelDraft, NoDraft
from outrider.step.tape_executor import TapeExecutor

CPU = torch.device("cpu")
TOLERANCE = 1e-4  # largest difference of any logit, in float32


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)


# --- the decoder


@pytest.mark.parametrize("family", ["mixtral", "qwen3-moe-mixed"])
def test_decoding_and_chunks_equal_one_prompt_of_all_tokens(family, tmp_path):
    model = save_tiny(family, tmp_path)
    harness = harness_of(tmp_path)
    tokens = prompt(17)
    expected = expected_logits(model, tokens)
    chunked = [
        harness.run({}, {1: (start, tokens[start:end])})
        for start, end in ((0, 5), (5, 6), (6, 13), (13, 16))
    ]
    decoded = harness.run({1: (16, tokens[16])}, {})
    assert (torch.cat([*chunked, decoded]) - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("family", ["mixtral", "qwen3-moe"])
def test_a_padded_step_gives_the_same_logits_and_replays_from_a_tape(family, tmp_path):
    save_tiny(family, tmp_path)
    tape = TapeExecutor()
    exact, padded, taped = (harness_of(tmp_path, pad=pad) for pad in (1, 8, 8))
    for seed in (1, 2):
        for step in (({}, {1: (0, prompt(11, seed))}), ({1: (11, seed)}, {})):
            right, eager = exact.run(*step), padded.run(*step)
            assert torch.equal(taped.run(*step, tape.run), eager)
            assert (eager[: len(right)] - right).abs().max() <= TOLERANCE


@pytest.mark.parametrize("family", ["mixtral", "qwen3-moe-mixed"])
def test_the_memory_of_experts_is_told_once(family, tmp_path, caplog):
    save_tiny(family, tmp_path)
    with caplog.at_level("INFO"):
        for dtype in ("packed", "bfloat16"):
            load_decoder(tmp_path, dtype=dtype, device=CPU)
    wide, half = (each.message for each in caplog.records if "experts are" in each.message)
    assert wide.startswith("experts are float32: 0.0")
    assert wide.endswith("layers; --dtype bfloat16 takes half of that")
    assert half.startswith("experts are bfloat16: 0.0")


@pytest.mark.parametrize("family", ["mixtral", "qwen3-moe-mixed"])
def test_stacked_and_separate_experts_give_equal_decoders(family, tmp_path):
    model = tiny_model(family)
    for name, is_apart in {"apart": True, "stacked": False}.items():
        model.save_pretrained(tmp_path / name, save_original_format=is_apart)
    stored = load_file(tmp_path / "stacked" / "model.safetensors")
    assert "model.layers.0.mlp.experts.gate_up_proj" in stored
    tokens = {1: (0, prompt(9))}
    apart = harness_of(tmp_path / "apart").run({}, tokens)
    assert torch.equal(apart, harness_of(tmp_path / "stacked").run({}, tokens))


# --- refusals

FIELDS = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "vocab_size": 50,
}


def test_the_layers_with_experts_follow_from_the_config():
    config = parse_config(FIELDS | {"decoder_sparse_step": 2, "mlp_only_layers": [3]})
    assert config.experts.layers == {1}
    assert config.experts_at(3) == NoExperts()
    assert parse_config(FIELDS | {"mlp_only_layers": None}).experts.layers == {0, 1, 2, 3}


def test_both_spellings_of_the_number_of_experts_are_read():
    fields = {key: value for key, value in FIELDS.items() if key != "num_experts"}
    assert parse_config(fields | {"num_local_experts": 8}) == parse_config(FIELDS)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_experts": 0}, "num_experts"),
        ({"num_experts": 8, "num_local_experts": 6}, "must say once how many experts"),
        ({"num_experts_per_tok": 9}, "9 of 8 experts"),
        ({"num_experts_per_tok": None}, "num_experts_per_tok"),
        ({"moe_intermediate_size": None}, "moe_intermediate_size"),
        ({"mlp_only_layers": [4]}, "mlp_only_layers"),
        ({"mlp_only_layers": 1}, "mlp_only_layers"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ({"architectures": ["MixtralForCausalLM"]}, "num_local_experts"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_unsupported_expert_field_is_refused_by_name(changes, named):
    with pytest.raises(ConfigError, match=named):
        parse_config(FIELDS | changes)


def test_a_missing_expert_is_refused_by_name(tmp_path):
    save_tiny("mixtral", tmp_path)
    lost = "model.layers.1.block_sparse_moe.experts.3.w2.weight"
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[lost]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=rf"lacks tensors \(1\): {lost}"):
        load_decoder(tmp_path, dtype="float32", device=CPU)


def test_more_experts_than_the_config_says_are_refused(tmp_path):
    save_tiny("mixtral", tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | {"num_local_experts": 4}))
    with pytest.raises(ConfigError, match=r"unexpected tensors \(9\): .*experts\.4"):
        load_decoder(tmp_path, dtype="float32", device=CPU)


def test_experts_in_8_bits_are_refused(tmp_path):
    save_tiny("mixtral", tmp_path)
    with pytest.raises(ConfigError, match="experts cannot be stored as int8"):
        load_decoder(tmp_path, dtype="int8", device=CPU)


# --- the engine


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("executor", ["eager", "tape"])
@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
def test_drafting_with_an_equal_model_changes_no_token_of_a_mixture(sampling, executor, tmp_path):
    theirs = save_tiny("mixtral", tmp_path)
    target = load_decoder(tmp_path, dtype="float32", device=CPU)
    twin = StandaloneDraft(target, target_vocab=target.config.vocab_size)
    shape = Shape(pad=4, executor=executor, depth=1)
    requests = [
        make_submission(f"r{i}", tokens, SAMPLINGS[sampling], max_tokens=9)
        for i, tokens in enumerate(PROMPTS)
    ]
    drafts = NoDraft(), ModelDraft(model=twin, budget=TREES["chain"])
    plain, drafted = (run_all(engine_of(target, shape, draft), requests) for draft in drafts)
    for i, tokens in enumerate(PROMPTS):
        right = decode(theirs, tokens, SAMPLINGS[sampling], max_tokens=9).tokens
        assert plain[f"r{i}"].tokens == right
        assert drafted[f"r{i}"].tokens == right
    progress = [entry.last.progress for entry in drafted.values()]
    assert sum(each.num_accepted for each in progress) == sum(each.drafted for each in progress) > 0
