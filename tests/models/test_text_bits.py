"""On a CPU a token's logits have the same bits however the text before it was computed."""

import random

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.recurrent import FAMILIES as RECURRENT
from support.recurrent import tiny_recurrent
from support.styled_families import STYLED_FAMILIES
from support.text_bits import TextBits, num_different
from support.tiny import (
    FAMILIES,
    GLM_FAMILIES,
    LATENT_FAMILIES,
    SPARSE_FAMILIES,
    VOCAB,
    save_tiny,
)
from support.torch_threads import torch_threads

from outrider.ops.compiled.block_kind import BLOCK, KINDS
from outrider.ops.compiled.find_blocks import find_blocks

ON_THREADS = ("llama-uneven", "qwen3", "gemma3", "qwen3-moe", "deepseek-v3", "qwen3.5-moe")
WITH_TREES = [*FAMILIES, *STYLED_FAMILIES, *SPARSE_FAMILIES, *GLM_FAMILIES, *LATENT_FAMILIES]


def bits_of(family, folder, length, dtype="float32"):
    if family in RECURRENT:
        tiny_recurrent(family).save_pretrained(folder)
    else:
        save_tiny(family, folder)
    text = random.Random(3).choices(range(VOCAB), k=length)
    return TextBits(folder, text, vocab=VOCAB, dtype=dtype)


def assert_equal_ways(bits, *, chunks, widths, places, trees):
    right = bits.one_by_one()
    for size in chunks:
        assert num_different(bits.in_chunks(size), right) == 0
    for width in widths:
        drafted = bits.in_chains(width, first=7)
        assert num_different(drafted, right[7 : 7 + len(drafted)]) == 0
    for at in places:
        for position, logits in bits.beside_others(at):
            assert torch.equal(logits, right[position])
    for at in trees:
        for position, logits in bits.in_a_tree(at, seed=at):
            assert torch.equal(logits, right[position])


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("family", [*WITH_TREES, *RECURRENT])
def test_chunks_chains_trees_and_batches_change_no_bit(family, tmp_path):
    bits = bits_of(family, tmp_path, length=22)
    trees = [13] if family in WITH_TREES else []
    assert_equal_ways(bits, chunks=[5, 22], widths=[3], places=[11], trees=trees)


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_smaller_weights_and_rounded_activations_change_no_bit_either(dtype, family, tmp_path):
    bits = bits_of(family, tmp_path, length=22, dtype=dtype)
    assert_equal_ways(bits, chunks=[5, 22], widths=[3], places=[11], trees=[13])


def keep_blocks(folder, kind):
    """Round the matrices of a saved model to GGUF blocks of this kind."""
    path = folder / "model.safetensors"
    tensors, kind = load_file(path), gguf.GGMLQuantizationType[kind]
    wide = {k: v for k, v in tensors.items() if v.dim() == 2 and v.shape[1] % BLOCK == 0}
    for name, weight in wide.items():
        blocks = gguf.quants.quantize(weight.numpy(), kind)
        tensors[name] = torch.from_numpy(gguf.quants.dequantize(blocks, kind))
    assert all(find_blocks(tensors[name]) for name in wide)
    assert len(wide) >= 14, "two layers of seven matrices each"
    save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_blocks_change_no_bit_either(kind, family, tmp_path):
    save_tiny(family, tmp_path)
    keep_blocks(tmp_path, kind)
    text = random.Random(3).choices(range(VOCAB), k=22)
    bits = TextBits(tmp_path, text, vocab=VOCAB, dtype="packed")
    assert_equal_ways(bits, chunks=[5, 22], widths=[3], places=[11], trees=[13])


def long_text_cases():
    """Every family on one thread, and on several one family of each kind of layer."""
    for family in (*WITH_TREES, *RECURRENT):
        # The products of latent heads have other bits with five threads.
        for threads in (1, 2) if family.startswith("deepseek") else (1, 2, 5):
            is_other = threads > 1 and family not in ON_THREADS
            yield pytest.param(family, threads, marks=[pytest.mark.matrix] if is_other else [])


@pytest.mark.slow
@pytest.mark.parametrize(("family", "threads"), list(long_text_cases()))
def test_no_way_to_compute_a_long_text_changes_a_bit(family, threads, tmp_path):
    with torch_threads(threads):
        bits = bits_of(family, tmp_path, length=150)
        assert_equal_ways(
            bits,
            chunks=[1, 2, 3, 16, 17, 64, 150],
            widths=[2, 3, 4, 5, 8, 9],
            places=[5, 75, 140],
            trees=range(1, 140, 9) if family in WITH_TREES else [],
        )
