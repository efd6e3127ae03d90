"""DeepSeek-V2 and V3 against transformers: latents, routing and refusals."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.decoders import expected_logits, harness_of, prompt
from support.engines import Shape, engine_of, make_submission, run_all
from support.heads import write_head
from support.matrix import PROMPTS, SAMPLINGS, TREES
from support.reference import decode
from support.tiny import LATENT_FAMILIES, LATENTS, SIZES, VOCAB, save_tiny, tiny_model
from support.trees import random_tree

from outrider.errors import ConfigError
from outrider.kv.kv_pool import KVLayout, KVPool, PageFamily
from outrider.models.decoder_loader import load_decoder
from outrider.models.eagle.head_loader import load_head
from outrider.models.expert_config import NoExperts
from outrider.models.layers.mla import score_scale
from outrider.models.model_config import parse_config
from outrider.models.standalone_draft import StandaloneDraft
from outrider.ops.moe.routing_config import ONE_GROUP, ExpertGroups
from outrider.runtime.draft_kinds import ModelDraft, NgramDraft, NoDraft
from outrider.step.tape_executor import TapeExecutor
from outrider.wire.draft_budget import Budget

CPU = torch.device("cpu")
TOLERANCE = 1e-4  # largest difference of any logit, in float32


# --- the decoder


@pytest.mark.parametrize("family", LATENT_FAMILIES)
def test_decoding_and_chunks_equal_one_prompt_of_all_tokens(family, tmp_path):
    model = save_tiny(family, tmp_path)
    harness, tokens = harness_of(tmp_path), prompt(17)
    chunked = [
        harness.run({}, {1: (start, tokens[start:end])})
        for start, end in ((0, 5), (5, 6), (6, 13), (13, 16))
    ]
    decoded = harness.run({1: (16, tokens[16])}, {})
    expected = expected_logits(model, tokens)
    assert (torch.cat([*chunked, decoded]) - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("family", LATENT_FAMILIES)
def test_every_node_of_a_tree_has_the_logits_of_its_path(family, tmp_path):
    model = save_tiny(family, tmp_path)
    nodes, text = 6, prompt(9)
    harness = harness_of(tmp_path, nodes=nodes)
    harness.run({}, {1: (0, text)})
    tree = random_tree(random.Random(3), rows=1, nodes=nodes, vocab=VOCAB)
    logits = harness.run_tree(1, len(text), tree)
    for node in range(nodes):
        mask = int(tree.ancestors[0, node])
        path = [int(tree.tokens[0, n]) for n in range(nodes) if mask >> n & 1]
        right = expected_logits(model, [*text, *path])[-1]
        assert (logits[node] - right).abs().max() <= TOLERANCE


def test_a_padded_step_gives_the_same_logits_and_replays_from_a_tape(tmp_path):
    save_tiny("deepseek-v3", tmp_path)
    tape = TapeExecutor()
    exact, padded, taped = (harness_of(tmp_path, pad=pad) for pad in (1, 8, 8))
    for seed in (1, 2):
        for step in (({}, {1: (0, prompt(11, seed))}), ({1: (11, seed)}, {})):
            right, eager = exact.run(*step), padded.run(*step)
            assert torch.equal(taped.run(*step, tape.run), eager)
            assert (eager[: len(right)] - right).abs().max() <= TOLERANCE


def test_stacked_and_separate_experts_give_equal_decoders(tmp_path):
    model = tiny_model("deepseek-v3")
    for name, is_apart in {"apart": True, "stacked": False}.items():
        model.save_pretrained(tmp_path / name, save_original_format=is_apart)
    assert any("gate_up" in name for name in load_file(tmp_path / "stacked/model.safetensors"))
    tokens = {1: (0, prompt(9))}
    apart = harness_of(tmp_path / "apart").run({}, tokens)
    assert torch.equal(apart, harness_of(tmp_path / "stacked").run({}, tokens))


def test_half_precision_is_close_to_float32(tmp_path):
    save_tiny("deepseek-v2-lite", tmp_path)
    tokens = {1: (0, prompt(9))}
    exact, rounded = (
        harness_of(tmp_path, dtype).run({}, tokens) for dtype in ("float32", "bfloat16")
    )
    # A few rows may select other experts, so only most logits are close.
    assert (rounded - exact).norm() <= 0.3 * exact.norm()


# --- config.json

FIELDS = SIZES | LATENTS | {"rms_norm_eps": 1e-6, "q_lora_rank": 16, "n_shared_experts": 2}
V2 = FIELDS | {"architectures": ["DeepseekV2ForCausalLM"]}
V3 = FIELDS | {"architectures": ["DeepseekV3ForCausalLM"], "n_group": 4, "topk_group": 2}


def test_a_token_stores_one_vector_of_latent_and_rotary_key():
    config = parse_config(V3)
    assert (config.attention.vectors, config.attention.width) == (1, 24 + 8)
    layout = KVLayout(layers=2, vectors=1, width=32, page_size=4, dtype=torch.float16)
    assert layout.page_bytes == 2 * 4 * 32 * 2
    family = PageFamily(num_pages=3, device=CPU)
    family.open(layout)
    keys = KVLayout(layers=1, vectors=4, width=8, page_size=4, dtype=torch.float16)
    assert family.open(keys).layers[0].shape == (3, 4, 4, 8)
    assert family.page_bytes == layout.page_bytes + 4 * 4 * 8 * 2


def test_routing_follows_the_rules_of_each_version():
    v2, v3 = parse_config(V2).experts, parse_config(V3).experts
    assert (v2.routing.score, v2.routing.is_normed, v2.has_bias) == ("softmax", False, False)
    assert (v3.routing.score, v3.routing.is_normed, v3.has_bias) == ("sigmoid", True, True)
    assert v3.routing.groups == ExpertGroups(num=4, num_selected=2, num_scored=2)
    assert v3.shared == 2 * LATENTS["moe_intermediate_size"]
    assert v3.layers == {1, 2}
    assert parse_config(V3).experts_at(0) == NoExperts()


def test_absent_fields_have_the_defaults_of_transformers():
    silent = {key: value for key, value in V3.items() if key not in ("n_group", "topk_group")}
    silent |= {"n_routed_experts": 32}
    v3, v2 = parse_config(silent).experts.routing, parse_config(V2).experts.routing
    assert (v3.scale, v3.groups) == (2.5, ExpertGroups(num=8, num_selected=4, num_scored=2))
    assert (v2.scale, v2.groups) == (1.0, ONE_GROUP)


def test_the_published_rope_scaling_of_deepseek_v3_scales_attention_scores():
    scaling = {
        "type": "yarn",
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 4096,
    }
    config = parse_config(V3 | {"rope_scaling": scaling, "rope_theta": 10000})
    assert config.rope.scaling.attention_factor == 1.0
    growth = 1.3688879454113936  # 0.1 ln 40 + 1
    assert score_scale(config.attention, config.rope) == pytest.approx(20**-0.5 * growth**2)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        (V3 | {"quantization_config": {"quant_method": "aqlm"}}, "weights quantised by aqlm"),
        (V3 | {"scoring_func": "softmax"}, "scoring_func"),
        (V3 | {"topk_method": "greedy"}, "topk_method"),
        (V3 | {"moe_layer_freq": 2}, "moe_layer_freq"),
        (V3 | {"n_group": 3}, "n_group"),
        (V3 | {"topk_group": 1}, "topk_group"),
        (V3 | {"kv_lora_rank": None}, "kv_lora_rank"),
        (V3 | {"qk_rope_head_dim": 7}, "qk_rope_head_dim"),
        (V3 | {"attention_bias": True}, "attention_bias"),
        (V3 | {"first_k_dense_replace": "1"}, "first_k_dense_replace"),
        (V3 | {"n_shared_experts": "1"}, "n_shared_experts"),
        (V3 | {"n_shared_experts": -1}, "n_shared_experts"),
        (V3 | {"routed_scaling_factor": "2.5"}, "routed_scaling_factor"),
        (V2 | {"norm_topk_prob": True}, "norm_topk_prob"),
        (V2 | {"scoring_func": "sigmoid"}, "scoring_func"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_unsupported_field_is_refused_by_name(fields, named):
    with pytest.raises(ConfigError, match=named):
        parse_config(fields)


@pytest.mark.parametrize(
    "lost",
    [
        "self_attn.kv_b_proj.weight",
        "self_attn.q_a_layernorm.weight",
        "mlp.gate.e_score_correction_bias",
        "mlp.shared_experts.up_proj.weight",
    ],
)
def test_a_missing_tensor_is_refused_by_name(lost, tmp_path):
    save_tiny("deepseek-v3", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[f"model.layers.1.{lost}"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=rf"lacks tensors \(1\): model.layers.1.{lost}"):
        load_decoder(tmp_path, dtype="float32", device=CPU)


def test_a_scale_beside_a_weight_that_needs_none_is_refused(tmp_path):
    save_tiny("deepseek-v3", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.self_attn.o_proj.weight_scale_inv"] = torch.zeros(1, 1)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"unexpected tensors .1.: .*o_proj.weight_scale_inv"):
        load_decoder(tmp_path, dtype="float32", device=CPU)


@pytest.mark.parametrize(("family", "is_read"), [("deepseek-v3", True), ("deepseek-v2", False)])
def test_draft_modules_after_the_last_layer_are_not_part_of_the_target(family, is_read, tmp_path):
    save_tiny(family, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.3.eh_proj.weight"] = torch.zeros(2, 2)
    save_file(tensors, tmp_path / "model.safetensors")
    if is_read:
        load_decoder(tmp_path, dtype="float32", device=CPU)
        return
    with pytest.raises(ConfigError, match=r"unexpected tensors \(1\): model.layers.3.eh_proj"):
        load_decoder(tmp_path, dtype="float32", device=CPU)


def test_training_a_head_for_a_target_with_latents_is_refused(tmp_path):
    from outrider.train.head_design import HeadDesign, head_fields

    (tmp_path / "config.json").write_text(json.dumps(V3 | {"num_hidden_layers": 6}))
    design = HeadDesign(
        layout="eagle3",
        draft_vocab=16,
        layers=1,
        masked_drafts=0,
        intermediate=0,
        heads=0,
        kv_heads=0,
    )
    with pytest.raises(ConfigError, match="experts"):
        head_fields(design, tmp_path)


# --- the engine


def drafts_for(target, folder):
    """Drafters with keys and values, the target as its own drafter, and drafters without KV."""
    save_tiny("llama", folder / "llama", seed=7)
    stranger = load_decoder(folder / "llama", dtype="float32", device=CPU)
    vocab = target.config.vocab_size
    head = load_head(
        write_head(folder / "head", target.config, algorithm="eagle3"),
        target=target,
        target_folder=folder,
        dtype="float32",
        device=CPU,
    )
    return {
        "none": NoDraft(),
        "ngram": NgramDraft(budget=Budget(steps=4, topk=3, nodes=9), min_match=1, max_match=3),
        "twin": ModelDraft(
            model=StandaloneDraft(target, target_vocab=vocab), budget=TREES["chain"]
        ),
        "llama": ModelDraft(
            model=StandaloneDraft(stranger, target_vocab=vocab), budget=TREES["tree"]
        ),
        "eagle3": ModelDraft(model=head, budget=TREES["wide"]),
    }


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("family", ["deepseek-v2-lite", "deepseek-v3"])
@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
def test_no_drafter_changes_a_token_of_a_target_with_latents(family, sampling, tmp_path):
    theirs = save_tiny(family, tmp_path)
    target = load_decoder(tmp_path, dtype="float32", device=CPU)
    right = [decode(theirs, tokens, SAMPLINGS[sampling], max_tokens=9).tokens for tokens in PROMPTS]
    requests = [
        make_submission(f"r{i}", tokens, SAMPLINGS[sampling], max_tokens=9)
        for i, tokens in enumerate(PROMPTS)
    ]
    for name, draft in drafts_for(target, tmp_path).items():
        for executor in ("eager", "tape"):
            shape = Shape(pad=4, executor=executor, depth=1, step_tokens=90)
            outputs = run_all(engine_of(target, shape, draft), requests)
            tokens = [outputs[f"r{i}"].tokens for i in range(len(PROMPTS))]
            assert tokens == right, (name, executor)
            progress = [entry.last.progress for entry in outputs.values()]
            if name == "twin":
                drafted = sum(each.drafted for each in progress)
                assert sum(each.num_accepted for each in progress) == drafted > 0


def test_the_pool_of_a_target_with_latents_holds_one_vector_per_token(tmp_path):
    save_tiny("deepseek-v3", tmp_path)
    harness = harness_of(tmp_path)
    assert isinstance(harness.pool, KVPool)
    assert harness.pool.layers[0].shape[2:] == (1, 32)
    harness.run({}, {1: (0, prompt(5))})
    stored = harness.pool.layers[0][harness.device.table.pages[1, 0], :4, 0]
    assert stored.abs().min() > 0
