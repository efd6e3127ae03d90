"""P-EAGLE heads in every dialect are one head. The doctor describes them; the rest is refused."""

import json
from pathlib import Path

import pytest
import torch
from support.heads import Variant
from support.peagle_heads import MASK, PEAGLE_DIALECTS, write_peagle

from outrider.config.draft_config import DraftConfig
from outrider.errors import ConfigError
from outrider.models.eagle.inspect_head import is_head
from outrider.runtime.load_draft import fit_draft

TRAINED = Variant(own_embedding=True, fc_norm=True, norm_before_residual=True)


def configure(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("dialect", PEAGLE_DIALECTS)
def test_a_dialect_says_what_the_others_say(target, tmp_path, dialect):
    for name, spelling in (("a", "SpecForge"), ("b", dialect)):
        write_peagle(tmp_path / name, target.config, TRAINED, dialect=spelling)
    first, second = (target.inspect(tmp_path / name) for name in "ab")
    assert not second.problems
    assert is_head(tmp_path / "b")
    config = second.config
    assert (config.aux, config.layer, config.output) == (
        first.config.aux,
        first.config.layer,
        first.config.output,
    )
    assert config.blocks.block == first.config.blocks.block
    assert config.blocks.block.mask_token == MASK
    heads = [target.load(tmp_path / name) for name in "ab"]
    assert torch.equal(heads[0]._mask_state, heads[1]._mask_state)


def test_the_doctor_describes_the_block(target, tmp_path):
    write_peagle(tmp_path, target.config, TRAINED, dialect="speculators")
    facts = dict(target.inspect(tmp_path).facts)
    assert facts["algorithm"] == "P-EAGLE"
    assert facts["block"] == (
        "as many slots in one pass as steps, usually 6, a slot predicts the next token, causal"
    )
    assert facts["layers"] == "2"


def test_it_drafts_as_deep_as_steps_say(target, tmp_path):
    write_peagle(tmp_path, target.config, TRAINED)
    here = Path(tmp_path)  # its config does not say how deep; speculators' configs do
    assert fit_draft(DraftConfig(drafter=str(tmp_path)), here).steps == 7
    assert fit_draft(DraftConfig(drafter=str(tmp_path), steps=20), here).steps == 20


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mask_token_id": None}, "mask_token_id to None"),
        ({"mask_token_id": 4000}, "mask_token_id to 4000"),
        ({"num_hidden_layers": 3}, "lacks tensors"),
        ({"num_hidden_layers": 1}, "unexpected tensors"),
        ({"architectures": ["LlamaForCausalLMEagle3"], "mask_token_id": None}, "lacks tensors"),
    ],
    ids=str,
)
def test_what_a_head_cannot_be_is_refused_by_name(target, tmp_path, changes, words):
    write_peagle(tmp_path, target.config, TRAINED)
    configure(tmp_path, **changes)
    with pytest.raises(ConfigError, match=words):
        target.load(tmp_path)
