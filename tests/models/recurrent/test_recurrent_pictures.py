"""Published Qwen3.5 folders hold a model of pictures too: the text model inside is read."""

import json
import logging
import shutil

import pytest
import torch
from support.pictures import KINDS, edit_fields, edit_tensors, save_with_pictures
from support.recurrent import CPU, expected_logits, harness_of, prompt
from transformers import AutoModelForCausalLM, Qwen3_5ForConditionalGeneration

from outrider import LLM, SamplingParams
from outrider.cli.main import run
from outrider.config.draft_config import DraftConfig
from outrider.errors import ConfigError
from outrider.models.model_config import read_config
from outrider.models.target import load_target

INSIDE = "model.language_model."
# What the hub's files say besides what transformers writes.
PUBLISHED = {
    "attn_output_gate": True,
    "full_attention_interval": 4,
    "mamba_ssm_dtype": "float32",
    "mtp_use_dedicated_embeddings": False,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [1, 1, 0],
        "partial_rotary_factor": 0.25,
        "rope_theta": 1e7,
        "rope_type": "default",
    },
}


@pytest.fixture(scope="module", params=list(KINDS))
def made(request, tmp_path_factory):
    """A folder and the model that was saved there."""
    folder = tmp_path_factory.mktemp("pictures")
    return folder, save_with_pictures(folder, request.param)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    save_with_pictures(folder, "qwen3.5")
    return folder


@pytest.fixture
def folder(source, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(source, tmp_path / "copy")


def load(folder):
    return load_target(folder, dtype="float32", device=CPU)


def assert_same_logits(folder, theirs):
    tokens = prompt(20)
    logits = harness_of(folder).run({}, {1: (0, tokens)})
    torch.testing.assert_close(logits, expected_logits(theirs, tokens), rtol=0, atol=1e-4)


def test_a_text_has_the_logits_of_the_whole_model(made):
    assert_same_logits(*made)


def test_the_fields_of_published_folders_are_understood(folder):
    edit_fields(folder, PUBLISHED)
    assert_same_logits(folder, Qwen3_5ForConditionalGeneration.from_pretrained(folder))


@pytest.mark.parametrize("family", list(KINDS))
def test_the_head_is_tied_where_the_outer_field_says_so(tmp_path, family):
    theirs = save_with_pictures(tmp_path, family, is_tied=True)
    fields = json.loads((tmp_path / "config.json").read_text())
    assert fields["tie_word_embeddings"]
    assert not fields["text_config"]["tie_word_embeddings"]
    assert_same_logits(tmp_path, theirs)


def test_the_inner_field_counts_where_the_outer_is_silent(folder):
    edit_fields(folder, {"tie_word_embeddings": True}, {"tie_word_embeddings": None})
    assert read_config(folder).is_tied


def test_experts_may_be_stacked_as_on_the_hub(tmp_path):
    theirs = save_with_pictures(tmp_path, "qwen3.5-moe", are_experts_stacked=True)
    assert_same_logits(tmp_path, theirs)


def test_the_module_inside_changes_no_token_of_a_whole_engine(made):
    prompts, said = [[7, 3, 44, 19, 60, 2, 31, 8], [5, 9]], []
    params = SamplingParams(
        temperature=1.0, seed=4, max_tokens=12, detokenize=False, ignore_eos=True
    )
    for drafter in ("none", "mtp"):
        draft = DraftConfig(drafter=drafter, adaptive=False)
        llm = LLM(
            made[0], draft=draft, adaptive=False, device="cpu", max_model_len=64, max_num_seqs=2
        )
        outputs = llm.generate(prompts, params, use_tqdm=False)
        said.append([output.outputs[0].token_ids for output in outputs])
    assert said[0] == said[1]
    assert all(output.outputs[0].acceptance.drafted for output in outputs)


def test_the_doctor_finds_the_module(made, capsys):
    assert run(["doctor", "mtp", "--model", str(made[0]), "--no-probe"]) == 0
    assert "mtp.layers.0.*" in capsys.readouterr().out


def test_a_lost_module_is_missed_because_the_inner_fields_announce_it(folder):
    edit_tensors(folder, lambda stored: {k: v for k, v in stored.items() if "mtp." not in k})
    with pytest.raises(ConfigError, match="mtp_num_hidden_layers 1, but the weights hold no"):
        LLM(folder, draft="mtp", adaptive=False, device="cpu", max_model_len=64)


def test_the_log_says_once_that_pictures_are_left_out(folder, caplog):
    with caplog.at_level(logging.INFO):
        LLM(folder, draft="mtp", adaptive=False, device="cpu", max_model_len=64, max_num_seqs=2)
    assert caplog.text.count("the vision part is not loaded: text only") == 1


def test_pictures_may_be_incomplete(folder):
    edit_tensors(
        folder, lambda stored: {k: v for k, v in stored.items() if "visual.blocks" not in k}
    )
    load(folder)


def test_a_missing_tensor_is_refused_by_the_name_it_is_stored_under(folder):
    name = INSIDE + "layers.0.linear_attn.A_log"
    edit_tensors(folder, lambda stored: {k: v for k, v in stored.items() if k != name})
    with pytest.raises(ConfigError, match=rf"lacks tensors \(1\): {name};"):
        load(folder)


def test_a_misshaped_tensor_is_refused_by_the_name_it_is_stored_under(folder):
    name = INSIDE + "norm.weight"
    edit_tensors(folder, lambda stored: stored | {name: torch.zeros(3)})
    with pytest.raises(ConfigError, match=rf"{name} \[3\] instead of \[32\]"):
        load(folder)


@pytest.mark.parametrize(
    "name",
    [
        INSIDE + "layers.0.linear_attn.extra",
        "model.norm.weight",  # what the tensor inside is called where a text model is alone
        "model.audio.proj.weight",
        "visual.pos_embed.weight",
    ],
)
def test_an_unknown_tensor_is_refused_by_name(folder, name):
    edit_tensors(folder, lambda stored: stored | {name: torch.zeros(32)})
    with pytest.raises(ConfigError, match=rf"unexpected tensors \(1\): {name};"):
        load(folder)


def test_the_nesting_of_older_saves_is_refused(folder):
    def renamed(stored):
        return {name.replace(INSIDE, "language_model.model."): v for name, v in stored.items()}

    edit_tensors(folder, renamed)
    with pytest.raises(ConfigError, match=r"lacks tensors .*model\.language_model\.embed_tokens"):
        load(folder)


def test_a_folder_without_the_fields_of_its_text_model_is_refused(folder):
    path = folder / "config.json"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps(fields | {"text_config": None}))
    with pytest.raises(ConfigError, match="object text_config"):
        load(folder)


def test_a_quantisation_that_is_not_read_is_refused_though_it_is_said_outside(folder):
    edit_fields(folder, outer={"quantization_config": {"quant_method": "aqlm"}})
    with pytest.raises(ConfigError, match="quantised by aqlm"):
        load(folder)


@pytest.mark.parametrize("keeps_names", [True, False])
def test_a_text_model_that_was_saved_apart_loads_whichever_names_it_has(
    source, tmp_path, keeps_names
):
    text = AutoModelForCausalLM.from_pretrained(source)
    text.save_pretrained(tmp_path, save_original_format=keeps_names)
    assert_same_logits(tmp_path, text)
