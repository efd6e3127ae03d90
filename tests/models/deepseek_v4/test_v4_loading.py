"""A DeepSeek-V4 folder is read strictly, in either dialect, and what cannot work is refused."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engines import NO_DRAFT, Shape, engine_of
from support.row_matrix import CHAIN, shape_of
from support.v4 import CPU, PAGE_SIZE, harness_of, prompt

from outrider import LLM, SamplingParams
from outrider.errors import ConfigError
from outrider.models.deepseek_v4.compressed_cache import CompressedPool
from outrider.models.deepseek_v4.compression import CompressedBlocks, NoBlocks
from outrider.models.deepseek_v4.v4_config import parse_v4
from outrider.models.deepseek_v4.v4_tensors import hub_name
from outrider.models.target import load_target, read_target
from outrider.runtime import target_cache as store
from outrider.runtime.draft_kinds import NgramDraft
from outrider.wire.draft_budget import Budget

# As the hub has it, with ratios by layer (the last is a draft module's) and scaling apart.
HUB_FIELDS = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "vocab_size": 129280,
    "hidden_size": 4096,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1024,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "sliding_window": 128,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "compress_ratios": [0, 4, 128, 4, 0],
    "compress_rope_theta": 160000,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "max_position_embeddings": 1048576,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "num_hash_layers": 3,
    "scoring_func": "sqrtsoftplus",
    "routed_scaling_factor": 1.5,
    "norm_topk_prob": True,
    "swiglu_limit": 10.0,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
}


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def change_fields(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def change_tensors(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file(change(tensors) or tensors, path)


def load(folder):
    return load_target(folder, dtype="float32", device=CPU)


def test_a_hub_config_says_the_same_in_its_own_words(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(HUB_FIELDS))
    config = read_target(tmp_path)
    sparse = CompressedBlocks(ratio=4, is_overlapping=True, index_width=128)
    heavy = CompressedBlocks(ratio=128, is_overlapping=False, index_width=0)
    assert config.attention.layers == (NoBlocks(), sparse, heavy, sparse)
    assert config.attention.block_rope.theta == 160000
    assert config.attention.block_rope.scaling.attention_factor == 1.0
    assert config.feed.hashed == {0, 1, 2}
    assert config.usual_page_size == 128


@pytest.mark.parametrize(
    ("fields", "ratios"),
    [
        ({"compress_rates": {"heavily_compressed_attention": 64}}, (4, 64)),
        ({"compress_rate_csa": 8, "compress_rate_hca": 16}, (8, 16)),
    ],
    ids=["newer", "older"],
)
def test_ratios_of_either_form_are_read(fields, ratios):
    layers = parse_v4(HUB_FIELDS | fields).attention.layers
    assert (layers[1].ratio, layers[2].ratio) == ratios


@pytest.mark.parametrize(("num", "hashed"), [(0, set()), (1, {0}), (None, {0, 1, 2})])
def test_a_config_says_how_many_layers_are_hashed_or_means_three(num, hashed):
    assert parse_v4(HUB_FIELDS | {"num_hash_layers": num}).feed.hashed == hashed


def test_a_folder_with_the_names_of_the_hub_and_draft_modules_is_the_same_model(folder, copy):
    def as_on_the_hub(tensors):
        renamed = {hub_name(name): tensor for name, tensor in tensors.items()}
        return renamed | {"mtp.0.e_proj.weight": torch.zeros(3, 3)}

    change_tensors(copy, as_on_the_hub)
    assert "layers.0.attn.kv_norm.weight" in load_file(copy / "model.safetensors")
    tokens = prompt(30)
    theirs, ours = (harness_of(each).run({}, {1: (0, tokens)}) for each in (folder, copy))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda t: t.pop("model.layers.1.attn.attn_sink"), "lacks tensors .1.: layers.1.attn.attn"),
        (lambda t: t.update(stray=torch.zeros(1)), "has unexpected tensors .1.: stray"),
        (
            lambda t: t.update({"model.hc_head.hc_base": torch.zeros(3)}),
            r"mis-shaped tensors .1.: model.hc_head.hc_base \[3\] instead of \[2\]",
        ),
        (
            lambda t: t.update({"head.weight": t["head.weight"].to(torch.int32)}),
            "has quantised tensors .1.: head.weight as I32",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(copy, change, fault):
    def changed(tensors):
        change(tensors)

    change_tensors(copy, changed)
    with pytest.raises(ConfigError, match=fault):
        load(copy)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"scoring_func": "softmax"}, "sets scoring_func to softmax, but only sqrtsoftplus"),
        ({"is_causal": False}, "sets is_causal to False, but only True"),
        ({"n_shared_experts": 2}, "sets n_shared_experts to 2"),
        ({"layer_types": ["sliding_attention"]}, "each of 5 layers one of sliding_attention"),
        ({"mlp_layer_types": ["dense"] * 5}, "hash_moe or moe in mlp_layer_types"),
        ({"layer_types": None, "compress_ratios": 4}, "a list compress_ratios, got 4"),
        ({"layer_types": "sliding_attention"}, "a list layer_types"),
        ({"mlp_layer_types": 5}, "a list mlp_layer_types, got 5"),
        ({"mlp_layer_types": None, "num_hash_layers": -1}, "num_hash_layers, got -1"),
        ({"compress_rates": {"sparse": 4}}, "in compress_rates, got {'sparse': 4}"),
        ({"compress_rate_csa": 0}, "compressed_sparse_attention, got 0"),
        ({"topk_method": "greedy"}, "sets topk_method to greedy, but only noaux_tc"),
        ({"partial_rotary_factor": 0.25}, "rotates 8 channels by qk_rope_head_dim and 4 by"),
        ({"o_groups": 3}, "groups must be equal"),
        ({"num_experts_per_tok": 7}, "selects 7 of 6 experts"),
        ({"quantization_config": {"quant_method": "aqlm"}}, "weights quantised by aqlm"),
        ({"quantization_config": {"bits": 4}}, "quantised by an unnamed method"),
        ({"layer_types": True}, "a list layer_types"),
        ({"mlp_layer_types": True}, "a list mlp_layer_types"),
        ({"compress_rates": [4]}, "an object compress_rates"),
        ({"rope_parameters": "yarn"}, "an object rope_parameters"),
    ],
)
def test_a_config_that_is_not_understood_is_refused_by_name(copy, fields, fault):
    change_fields(copy, **fields)
    with pytest.raises(ConfigError, match=fault):
        load(copy)


@pytest.mark.parametrize(
    ("draft", "shape", "fix"),
    [
        (
            NgramDraft(budget=Budget(steps=2, topk=2, nodes=4), min_match=1, max_match=2),
            {},
            "topk 1",
        ),
        (
            NgramDraft(budget=Budget(steps=7, topk=3, nodes=22), min_match=1, max_match=2),
            {},
            "checks chains only, and topk 3 makes trees; use --topk 1",
        ),
        (
            NgramDraft(budget=Budget(steps=16, topk=1, nodes=17), min_match=1, max_match=2),
            {},
            "at most 16 nodes, and 17 were requested; use --nodes 16, or drafts of 15 steps",
        ),
        (NO_DRAFT, {"page_size": 8}, "use block_size=16"),
        (NO_DRAFT, {"page_size": 40}, "4 and 16 tokens, and a page of 40 .* use block_size=16"),
    ],
)
def test_what_the_rings_and_blocks_cannot_do_is_refused_at_start(target, draft, shape, fix):
    with pytest.raises(ConfigError, match=fix):
        engine_of(target, Shape(**{"page_size": PAGE_SIZE, "step_tokens": 128} | shape), draft)


def test_more_rows_than_there_is_memory_for_their_rings_are_refused(target, monkeypatch):
    row = target.layout(page_size=PAGE_SIZE, nodes=6).row_bytes
    monkeypatch.setattr(store, "free_bytes", lambda *_, **__: 4 * row + 1)
    with pytest.raises(ConfigError, match="lower max_num_seqs to 1, which leaves"):
        engine_of(target, shape_of(CHAIN, chunk=8, max_rows=4), CHAIN)


def test_rings_are_as_large_as_they_say(target):
    harness_rows, layout = 5, target.layout(page_size=PAGE_SIZE, nodes=6)
    pool = CompressedPool(layout, table_rows=harness_rows, num_pages=3, device=CPU)
    rings = [ring for layer in pool.layers for ring in vars_of(layer, ("window", "states"))]
    pages = [pages for layer in pool.layers for pages in vars_of(layer, ("entries", "keys"))]
    assert sum(ring.nbytes for ring in rings) == harness_rows * layout.row_bytes
    assert sum(each.nbytes for each in pages) == 3 * layout.page_bytes


def test_restart_zeroes_pages_and_ring_buffers(target):
    layout = target.layout(page_size=PAGE_SIZE, nodes=6)
    pool = CompressedPool(layout, table_rows=5, num_pages=3, device=CPU)
    for tensor in pool.tensors:
        tensor.fill_(1.0)
    pool.clean(torch.tensor([0, 2]))
    for layer in pool.layers:
        assert not any(ring.any() for ring in layer.ring_buffers)
        for part in layer.paged:
            assert part.sum() == part.numel() // 3  # page 1 is as it was


def vars_of(layer, names):
    return [getattr(layer, name) for name in names if name in type(layer).__dataclass_fields__]


def test_a_folder_is_all_that_the_offline_api_needs(folder, theirs):
    llm = LLM(folder, draft="ngram", adaptive=False, device="cpu", max_num_seqs=2)
    asked = {"prompt_token_ids": prompt(30)}
    said = llm.generate(asked, llm_greedy(max_tokens=6), use_tqdm=False)[0].outputs[0].token_ids
    right = list(prompt(30))
    for _ in range(6):
        with torch.no_grad():
            right.append(int(theirs(torch.tensor([right])).logits[0, -1].argmax()))
    assert list(said) == right[30:]


def llm_greedy(**how):
    return SamplingParams(temperature=0.0, detokenize=False, ignore_eos=True, **how)


def test_a_longer_chain_makes_longer_rings(target):
    short, long = (target.layout(page_size=PAGE_SIZE, nodes=nodes) for nodes in (1, 16))
    assert [short.ring_length(8), long.ring_length(8)] == [7, 22]
    assert long.row_bytes > short.row_bytes
    assert replace(long, nodes=1).row_bytes == short.row_bytes
