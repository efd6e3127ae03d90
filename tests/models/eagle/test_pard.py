"""Whole models that were trained with masks: how they load, and what the doctor says."""

import pytest
import torch
from support.block_heads import BlockVariant, write_block_head
from support.pard_models import MASK, write_pard
from support.tiny import save_tiny

from outrider.cli.main import run
from outrider.config.draft_config import DraftConfig
from outrider.errors import ConfigError
from outrider.models.pard_draft import PardDraft
from outrider.models.standalone_draft import load_standalone
from outrider.runtime.inspect_target import examine_head, fitting_steps
from outrider.runtime.load_draft import fit_draft


def load(target, folder):
    places = {"target": target.decoder, "target_folder": target.folder}
    return load_standalone(folder, **places, dtype="float32", device=torch.device("cpu"))


def test_a_model_with_a_token_for_masks_drafts_blocks(target, tmp_path):
    write_pard(tmp_path)
    draft = load(target, tmp_path)
    assert isinstance(draft, PardDraft)
    assert draft.block.mask_token == MASK
    assert draft.facts.aux_layers.layers == ()
    assert fit_draft(DraftConfig(drafter=str(tmp_path)), target.folder).steps == 12
    assert fit_draft(DraftConfig(drafter=str(tmp_path), steps=3), target.folder).steps == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"spd_type": "pard2"}, "spd_type to pard2"),
        ({"pard_token": 4000}, "pard_token to 4000"),
        ({"pard_token": -1}, "pard_token to -1"),
        ({"pard_token": None}, "pard_token to -1"),  # spd_type says that there is one
    ],
    ids=str,
)
def test_what_it_cannot_be_is_refused_by_name(target, tmp_path, changes, words):
    write_pard(tmp_path, **changes)
    with pytest.raises(ConfigError, match=words):
        load(target, tmp_path)
    assert any(words in problem for problem in examine_head(tmp_path, target.folder).problems)


def test_the_doctor_describes_whole_models(target, tmp_path, capsys):
    write_pard(tmp_path / "pard")
    save_tiny("llama-tied", tmp_path / "plain")
    command = ["--model", str(target.folder), "--no-probe"]
    assert run(["doctor", str(tmp_path / "pard"), *command]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "PARD: a whole model, as many slots in one pass as steps, usually 12; masks" in out
    assert run(["doctor", str(tmp_path / "plain"), *command]) == 0
    assert "a whole model, token by token" in capsys.readouterr().out


def test_a_probe_drafts_no_deeper_than_a_block(target, tmp_path):
    write_block_head(tmp_path / "head", target.config, BlockVariant(size=4))
    write_pard(tmp_path / "pard")
    assert fitting_steps(tmp_path / "head", 5) == 3
    assert fitting_steps(tmp_path / "pard", 5) == 5
