"""Block-parallel heads in every dialect are one computation; the rest is refused by name."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.block_heads import BLOCK_DIALECTS, BLOCKS, BlockVariant, write_block_head
from support.tiny import save_tiny

from outrider.cli.main import run
from outrider.config.draft_config import DraftConfig, TreeSize, resolve_budget
from outrider.errors import ConfigError
from outrider.frontend.llm import LLM
from outrider.frontend.sampling_params import SamplingParams
from outrider.models.decoder_loader import load_decoder
from outrider.models.eagle.head_loader import load_head
from outrider.models.eagle.inspect_head import inspect_head
from outrider.ops.attention.attention_rule import WHOLE_TEXT
from outrider.runtime.load_draft import fit_draft

CPU = torch.device("cpu")
FULL = BlockVariant(is_next=True, markov_rank=6, has_confidence=True, reads_token=True)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    save_tiny("llama", folder)
    return folder, load_decoder(folder, dtype="float32", device=CPU)


def load(target, folder):
    return load_head(folder, target=target[1], target_folder=target[0], dtype="float32", device=CPU)


def configure(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("dialect", BLOCK_DIALECTS)
def test_a_dialect_says_what_the_others_say(target, tmp_path, dialect):
    write_block_head(tmp_path / "a", target[1].config, FULL, dialect="DeepSpec")
    write_block_head(tmp_path / "b", target[1].config, FULL, dialect=dialect)
    reports = [inspect_head(tmp_path / name, target[1].config, target[0]) for name in "ab"]
    first, second = (report.config for report in reports)
    assert not reports[1].problems
    assert (first.aux, first.layer, first.blocks) == (second.aux, second.layer, second.blocks)
    head = load(target, tmp_path / "b")
    assert head.block.num_drafts == 5
    assert head.is_conditional


K3_NAMES = {"fc": "context_proj", "hidden_norm": "context_norm", "norm": "final_norm"}


@pytest.mark.parametrize("architecture", ["K3DSparkModel", "DeepseekDFlashDraftModel"])
def test_heads_with_latents_load_by_the_names_of_their_projects(target, tmp_path, architecture):
    is_k3 = architecture == "K3DSparkModel"
    variant = BlockVariant(is_next=is_k3, markov_rank=6 * is_k3, has_latents=True, query_rank=14)
    config = target[1].config
    own = write_block_head(tmp_path, config, variant, dialect="DeepSpec" if is_k3 else "z-lab")
    configure(tmp_path, architectures=[architecture])
    if is_k3:
        names = {name: name.split(".", 1) for name in own}
        renamed = {
            ".".join([K3_NAMES.get(stem, stem), *rest]): own[name]
            for name, (stem, *rest) in names.items()
        }
        save_file(renamed, tmp_path / "model.safetensors")
        configure(tmp_path, mask_token_id=None, dspark_noise_token_id=3)
    report = inspect_head(tmp_path, config, target[0])
    assert report.problems == ()
    assert "latents (MLA)" in dict(report.facts)["variant"]
    head = load(target, tmp_path)
    assert (head.block.first, head.is_conditional) == ((0, True) if is_k3 else (1, False))
    assert head.facts.attention.latent == 20


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block_size": 65}, "block_size"),
        ({"block_size": 1}, "at least 2 slots"),
        ({"mask_token_id": 4000}, "mask_token_id"),
        ({"target_layer_ids": [0, 2]}, "last layer"),
        ({"target_layer_ids": None}, "target_layer_ids"),
        ({"markov_head_type": "rnn"}, "markov_head_type"),
        ({"input_embedding_scale": 2.0}, "input_embedding_scale"),
        ({"markov_rank": 5}, "mis-shaped"),
        ({"architectures": ["DominoDraftModel"]}, "DominoDraftModel"),
        ({"architectures": ["DFlash2DraftModel"]}, "conv_kernel_size"),
        ({"num_hidden_layers": 3, "layer_types": None}, "lacks tensors"),
    ],
    ids=str,
)
def test_what_a_head_cannot_be_is_refused_by_name(target, tmp_path, changes, words):
    write_block_head(tmp_path, target[1].config, FULL, dialect="DeepSpec")
    configure(tmp_path, **changes)
    with pytest.raises(ConfigError, match=words):
        load(target, tmp_path)


@pytest.mark.parametrize(
    ("changes", "windows", "causal_layers"),
    [
        ({}, [8, WHOLE_TEXT], (True, False)),
        ({"is_causal": True}, [8, WHOLE_TEXT], (True, True)),
        ({"use_swa": True, "swa_window_size": 5}, [5, WHOLE_TEXT], (True, False)),
        (
            {"use_swa": True, "swa_window_size": 5, "layer_types": None, "is_causal": True},
            [5, 5],
            (True, True),
        ),
        ({"sliding_window_non_causal": False}, [8, WHOLE_TEXT], (True, False)),
        ({"layer_types": ["full_attention"] * 2}, [WHOLE_TEXT] * 2, (False, False)),
    ],
    ids=str,
)
def test_layers_with_windows_are_causal_unless_a_field_says_so(
    target, tmp_path, changes, windows, causal_layers
):
    variant = BlockVariant(windows=(8, 0))
    write_block_head(tmp_path, target[1].config, variant, dialect="DeepSpec")
    configure(tmp_path, **changes)
    config = inspect_head(tmp_path, target[1].config, target[0]).config
    assert list(config.layer.windows) == windows
    assert config.blocks.causal_layers == causal_layers
    assert load(target, tmp_path).is_mixed == (len(set(causal_layers)) > 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"is_causal": False},
        {"sliding_window_non_causal": True},
        # vLLM: no layer has the type of a window, so none is causal. MiMo's heads are such.
        {"use_swa": True, "swa_window_size": 5, "layer_types": None},
        {"use_swa": True, "layer_types": ["full_attention"] * 2},
    ],
    ids=str,
)
def test_windows_in_which_slots_read_later_slots_are_refused(target, tmp_path, changes):
    write_block_head(tmp_path, target[1].config, BlockVariant(windows=(8, 0)))
    configure(tmp_path, **changes)
    with pytest.raises(ConfigError, match="slots read later slots"):
        load(target, tmp_path)


def test_a_tensor_too_many_and_a_damaged_mask_are_refused(target, tmp_path):
    write_block_head(tmp_path, target[1].config, BlockVariant(has_mask_vector=True))
    path = tmp_path / "model.safetensors"
    save_file(load_file(path) | {"layers.0.g_proj.weight": torch.zeros(2)}, path)
    with pytest.raises(ConfigError, match=r"layers\.0\.g_proj\.weight"):
        load(target, tmp_path)
    (tmp_path / "mask_embedding.pt").write_bytes(b"no tensor")
    with pytest.raises(ConfigError, match=r"mask_embedding\.pt is damaged"):
        load(target, tmp_path)


def test_a_block_is_drafted_whole_unless_sizes_are_given(target, tmp_path):
    write_block_head(tmp_path, target[1].config, BlockVariant())
    config = DraftConfig(drafter=str(tmp_path))
    assert fit_draft(config, target[0]).steps == 4
    with pytest.raises(ConfigError, match="drafts 4 tokens in a block"):
        fit_draft(DraftConfig(drafter=str(tmp_path), steps=5), target[0])


def test_branches_of_a_tree_over_a_block_need_no_draft_kv(target, tmp_path):
    write_block_head(tmp_path, target[1].config, BlockVariant())
    sizes = {"steps": 4, "topk": 30, "nodes": 40}
    settings = resolve_budget(fit_draft(DraftConfig(drafter=str(tmp_path), **sizes), target[0]))
    assert settings.tree == TreeSize(**sizes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"conv_group_size": 5}, "does not divide hidden_size 32"),
        ({"conv_kernel_size": 3}, "mis-shaped"),
        ({"selector_rank": 7}, "mis-shaped"),
        ({"projector_type": "domino"}, "projector_type"),
    ],
    ids=str,
)
def test_what_dflash2_cannot_be_is_refused_by_name(target, tmp_path, changes, words):
    write_block_head(tmp_path, target[1].config, BLOCKS["dflash2"])
    configure(tmp_path, **changes)
    with pytest.raises(ConfigError, match=words):
        load(target, tmp_path)


def test_the_doctor_describes_dflash2(target, tmp_path):
    write_block_head(tmp_path, target[1].config, BLOCKS["dflash2"])
    facts = dict(inspect_head(tmp_path, target[1].config, target[0]).facts)
    assert facts["algorithm"] == "DFlash2"
    assert facts["block"].endswith("convolutions of 2 slots, selector of rank 5 among 6 tokens")


def test_the_doctor_describes_a_block(target, tmp_path, capsys):
    write_block_head(tmp_path, target[1].config, FULL, dialect="SpecForge")
    assert run(["doctor", str(tmp_path), "--model", str(target[0]), "--no-probe"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "algorithm DSpark" in out
    assert "5 slots in one pass, 5 drafts, a slot predicts the next token" in out


def test_an_llm_drafts_with_it_and_says_the_same(tiny_folder, target, tmp_path):
    write_block_head(tmp_path, target[1].config, FULL)
    prompts = ["the rider goes out", "a"]
    sampling = SamplingParams(max_tokens=12, temperature=0.8, seed=3)
    plain, drafted = (
        LLM(tiny_folder, draft=draft, adaptive=False, dtype="float32").generate(prompts, sampling)
        for draft in ("none", str(tmp_path))
    )
    assert [one.outputs[0].token_ids for one in plain] == [
        one.outputs[0].token_ids for one in drafted
    ]
