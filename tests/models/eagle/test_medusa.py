"""Medusa heads in both formats are the same heads. The doctor describes them."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.medusa_models import MedusaVariant, write_medusa

from outrider.config.draft_config import DraftConfig
from outrider.errors import ConfigError
from outrider.models.eagle.inspect_head import is_head
from outrider.models.medusa.medusa_loader import load_medusa
from outrider.runtime.inspect_target import examine_head
from outrider.runtime.load_draft import fit_draft, load_draft

MAPPED = MedusaVariant(draft_vocab=40, has_bias=False)


def load(target, folder):
    places = {"target": target.decoder, "target_folder": target.folder}
    return load_medusa(folder, **places, dtype="float32")


def configure(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_tensors(folder, **changes):
    path = folder / "model.safetensors"
    save_file(load_file(path) | changes, path)


def test_both_dialects_compute_the_same(target, tmp_path):
    states = torch.randn(2, 3, 32)
    logits = []
    for dialect in ("vLLM", "FasterDecoding"):
        write_medusa(tmp_path / dialect, target.config, MedusaVariant(), dialect=dialect)
        assert is_head(tmp_path / dialect)
        logits.append(load(target, tmp_path / dialect).logits(states, 1))
    assert torch.equal(*logits)
    assert not torch.equal(logits[0][:, 0], load(target, tmp_path / "vLLM").logits(states, 0)[:, 0])


def test_heads_with_all_tokens_are_cut_to_the_map(target, tmp_path):
    write_medusa(tmp_path, target.config, MAPPED)
    ids = load_file(tmp_path / "model.safetensors")["token_map"]
    whole = {f"lm_heads.{head}.weight": torch.randn(67, 32) for head in range(4)}
    change_tensors(tmp_path, **whole)
    model, states = load(target, tmp_path), torch.randn(1, 1, 32)
    assert torch.equal(model.target_ids, ids.sort().values)
    right = states[0] @ whole["lm_heads.2.weight"][model.target_ids].T
    torch.testing.assert_close(model.logits(states, 2)[0], right)


def test_it_loads_as_a_drafter_with_all_its_heads(target, tmp_path):
    write_medusa(tmp_path, target.config, MedusaVariant())
    config = fit_draft(DraftConfig(drafter=str(tmp_path)), target.folder)
    kind = load_draft(
        config,
        target=target.decoder,
        target_folder=target.folder,
        dtype="float32",
        arithmetic="fast",
        max_context=64,
    )
    assert (kind.budget.steps, kind.facts.block, kind.attention) == (4, 4, ())
    with pytest.raises(ConfigError, match="drafts 4 tokens"):
        fit_draft(DraftConfig(drafter=str(tmp_path), steps=5), target.folder)


def test_the_doctor_describes_heads_and_notes_unused_ones(target, tmp_path):
    write_medusa(tmp_path, target.config, MedusaVariant(), dialect="FasterDecoding")
    configure(tmp_path, medusa_num_heads=3)
    report = examine_head(tmp_path, target.folder)
    facts = dict(report.facts)
    assert (facts["algorithm"], facts["dialect"]) == ("Medusa", "FasterDecoding")
    assert facts["block"] == "3 heads in one pass, each drafts one token by itself"
    assert facts["variant"] == "residual blocks of a head: 1, biases"
    assert report.problems == ()
    assert report.notes[0].startswith("4 heads are stored, and config.json says 3")


@pytest.mark.parametrize(
    ("fields", "tensors", "words"),
    [
        ({"num_heads": 5}, {}, "lacks tensors"),
        ({"num_heads": None}, {}, "num_heads"),
        ({"medusa_fc_bias": True}, {}, "lacks tensors"),
        ({"truncated_vocab_size": 41}, {}, "mis-shaped"),
        ({}, {"hydra.weight": torch.zeros(2)}, "unexpected tensors"),
        ({}, {"token_map": torch.full((40,), 99)}, "outside the target's 67 tokens"),
        ({}, {"token_map": torch.zeros(40, dtype=torch.long)}, "names a token twice"),
        ({}, {"token_map": torch.tensor(1)}, r"mis-shaped tensors \(1\): token_map \[\]"),
        ({}, {"token_map": torch.zeros(0)}, "mis-shaped"),
        ({}, {"lm_heads.1.weight": torch.tensor(1.0)}, r"lm_heads.1.weight \[\] instead"),
        ({}, {"0.1.weight": torch.zeros(40, 32)}, "stores lm_heads.0.weight twice"),
    ],
    ids=str,
)
def test_what_heads_cannot_be_is_refused_by_name(target, tmp_path, fields, tensors, words):
    write_medusa(tmp_path, target.config, MAPPED)
    configure(tmp_path, **fields)
    change_tensors(tmp_path, **tensors)
    with pytest.raises(ConfigError, match=words):
        load(target, tmp_path)
