"""A whole model as a drafter, and the comparison of two tokenizers."""

import json

import pytest
import torch
from support.tiny import VOCAB, save_tiny

from outrider.errors import ConfigError
from outrider.models.decoder_loader import load_decoder
from outrider.models.draft_model import AuxLayers
from outrider.models.inspect_standalone import inspect_standalone
from outrider.models.same_vocabulary import check_same_tokenizer, compare_tokenizers
from outrider.models.standalone_draft import StandaloneDraft, load_standalone

CPU = torch.device("cpu")


def write_tokenizer(folder, vocab, added=()):
    folder.mkdir(exist_ok=True)
    tokens = [{"content": text, "id": token} for text, token in added]
    fields = {"model": {"vocab": vocab}, "added_tokens": tokens}
    (folder / "tokenizer.json").write_text(json.dumps(fields))
    return folder


def test_a_whole_model_has_lead_1_and_no_aux_layers(target):
    draft = StandaloneDraft(target.decoder, target_vocab=VOCAB)
    facts = draft.facts
    assert (facts.lead, facts.aux_layers, facts.width, facts.num_layers) == (1, AuxLayers(), 32, 3)


@pytest.mark.parametrize("target_vocab", [VOCAB - 3, VOCAB, VOCAB + 3])
def test_a_whole_model_proposes_tokens_of_both_vocabularies(target_vocab, target):
    draft = StandaloneDraft(target.decoder, target_vocab=target_vocab)
    size = min(VOCAB, target_vocab)
    assert torch.equal(draft.target_ids, torch.arange(size))
    with torch.inference_mode():
        assert draft.logits(torch.zeros(2, 32)).shape == (2, size)


def test_a_whole_model_accepts_every_token_of_a_larger_vocabulary(target):
    wider = target.decoder.with_vocabulary(VOCAB + 3)
    assert wider.embedding.shape[0] == VOCAB + 3
    assert torch.equal(wider.embedding[:VOCAB], target.decoder.embedding)
    assert target.decoder.with_vocabulary(VOCAB).embedding is target.decoder.embedding


def test_a_whole_model_needs_safetensors_though_heads_do_not(target, tmp_path):
    save_tiny("llama", tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    lacks = "lacks model.safetensors; pass a complete Hugging Face folder with safetensors weights"
    places = {"target": target.decoder, "target_folder": target.folder}
    with pytest.raises(ConfigError, match=lacks):
        load_standalone(tmp_path, **places, dtype="float32", device=CPU)
    report = inspect_standalone(tmp_path, target.config, target.folder)
    assert lacks in report.problems[0]


def test_a_whole_model_with_the_same_tokenizer_loads(target, tmp_path):
    save_tiny("llama-tied", tmp_path / "draft", seed=1)
    places = {"target": target.decoder, "target_folder": tmp_path / "target"}
    write_tokenizer(tmp_path / "draft", {"a": 0})
    write_tokenizer(tmp_path / "target", {"a": 0})
    draft = load_standalone(tmp_path / "draft", **places, dtype="float32", device=CPU)
    hidden = torch.randn(2, 32)
    expected = load_decoder(tmp_path / "draft", dtype="float32", device=CPU).logits(hidden)
    assert torch.equal(draft.logits(hidden), expected)
    write_tokenizer(tmp_path / "draft", {"b": 0})
    with pytest.raises(ConfigError, match="same tokenizer"):
        load_standalone(tmp_path / "draft", **places, dtype="float32", device=CPU)


def test_a_token_with_another_id_is_refused_by_name(tmp_path):
    one = write_tokenizer(tmp_path / "one", {"a": 0, "b": 1})
    other = write_tokenizer(tmp_path / "other", {"a": 0, "c": 1})
    with pytest.raises(ConfigError, match="token 'b' has id 1 and none"):
        check_same_tokenizer(one, other)


def test_added_tokens_and_both_kinds_of_vocabulary_are_compared(tmp_path):
    one = write_tokenizer(tmp_path / "one", {"a": 0, "b": 1}, added=[("<end>", 2)])
    other = write_tokenizer(tmp_path / "other", [["a", -1.0], ["b", -2.0]], added=[("<end>", 2)])
    assert compare_tokenizers(one, other).result == "same"
    check_same_tokenizer(one, other)


def test_a_folder_without_a_tokenizer_is_accepted_with_a_warning(tmp_path, caplog):
    one = write_tokenizer(tmp_path / "one", {"a": 0})
    check_same_tokenizer(one, tmp_path)
    assert "has no tokenizer.json" in caplog.text


def test_a_damaged_tokenizer_is_refused_by_name(tmp_path):
    one = write_tokenizer(tmp_path / "one", {"a": 0})
    other = write_tokenizer(tmp_path / "other", {"a": 0})
    (other / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"tokenizer\.json cannot be read"):
        check_same_tokenizer(one, other)
