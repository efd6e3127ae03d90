"""Folders of integers in groups run in compiled regions of a CPU, from their codes."""

import random

import pytest
import torch
from support import packed_folders as forms
from support.packed_forms import GROUPS
from support.text_bits import TextBits, num_different
from transformers import LlamaConfig, LlamaForCausalLM

from outrider.models.decoder_loader import load_decoder

CPU = torch.device("cpu")
FOLDERS = [name for name in GROUPS if name.endswith("32")]


def _llama():
    """Whole groups of 32 inputs in every projection."""
    torch.manual_seed(4)
    config = LlamaConfig(
        vocab_size=100,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config)


@pytest.fixture
def folder_of(tmp_path):
    def write(form):
        packer, config = GROUPS[form]
        _llama().save_pretrained(tmp_path / "source")
        packers, packed = forms.linear_by(packer), tmp_path / "packed"
        forms.write_packed(tmp_path / "source", packers, config, packed, tmp_path / "plain")
        return packed

    return write


def bits_of(folder, length, dtype):
    text = random.Random(3).choices(range(100), k=length)
    return TextBits(folder, text, vocab=100, dtype=dtype)


@pytest.mark.parametrize("form", FOLDERS)
def test_logits_are_those_of_the_widened_model(form, folder_of):
    folder = folder_of(form)
    packed, wide = (bits_of(folder, 9, dtype).one_by_one() for dtype in ("packed", "float32"))
    assert num_different(packed, wide) == len(wide), "activations are rounded"
    assert (packed - wide).norm() / wide.norm() < 0.05


@pytest.mark.parametrize("form", FOLDERS)
def test_layers_of_groups_are_one_region_and_change_no_bit(form, folder_of):
    folder = folder_of(form)
    decoder = load_decoder(folder, dtype="packed", device=CPU)
    assert decoder._stack.compiled is not None
    stored = {each.modules: each.storage for each in decoder.storage}
    assert (stored["gate_proj, up_proj"], stored["lm_head"]) == ("int4", "float32")
    bits = bits_of(folder, 14, "packed")
    right = bits.one_by_one()
    assert num_different(bits.in_chunks(5), right) == 0
    chains = bits.in_chains(3, first=5)
    assert num_different(chains, right[5 : 5 + len(chains)]) == 0
    for position, logits in bits.in_a_tree(7, seed=7):
        assert torch.equal(logits, right[position])
