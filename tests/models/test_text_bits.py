"""On a CPU a token's logits have the same bits however the text before it was computed."""

import itertools
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
from support.v4 import VOCAB as V4_VOCAB
from support.v4 import saved_v4

from outrider.ops.compiled.block_kind import BLOCK
from outrider.ops.compiled.find_blocks import find_blocks

ON_THREADS = (
    *("llama-uneven", "qwen3", "gemma3", "qwen3-moe"),
    *("deepseek-v3", "deepseek-v4", "qwen3.5-moe"),
)
V4 = "deepseek-v4"
TYPES = ("float32", "bfloat16", "float16")
WITH_TREES = [*FAMILIES, *STYLED_FAMILIES, *SPARSE_FAMILIES, *GLM_FAMILIES, *LATENT_FAMILIES]


def bits_of(family, folder, length, dtype="float32"):
    if family == V4:
        saved_v4(folder)
    elif family in RECURRENT:
        tiny_recurrent(family).save_pretrained(folder)
    else:
        save_tiny(family, folder)
    vocab = V4_VOCAB if family == V4 else VOCAB
    text = random.Random(3).choices(range(vocab), k=length)
    return TextBits(folder, text, vocab=vocab, dtype=dtype)


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
@pytest.mark.parametrize("family", [V4, *WITH_TREES, *RECURRENT])
def test_chunks_chains_trees_and_batches_change_no_bit(family, tmp_path):
    bits = bits_of(family, tmp_path, length=22)
    trees = [13] if family in WITH_TREES else []
    assert_equal_ways(bits, chunks=[5, 22], widths=[3], places=[11], trees=trees)


def smaller_cases():
    """Dense families in every type, and one family of each other kind of layer in 2 bytes."""
    others = [V4, "qwen3-moe", "deepseek-v3", "qwen3.5-moe"]
    halves = [(dtype, family) for dtype in ("bfloat16", "float16") for family in others]
    return [*itertools.product(["int8", "float16", "bfloat16"], FAMILIES), *halves]


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize(("dtype", "family"), smaller_cases())
def test_smaller_weights_and_rounded_activations_change_no_bit_either(dtype, family, tmp_path):
    bits = bits_of(family, tmp_path, length=22, dtype=dtype)
    trees = [13] if family in WITH_TREES else []
    assert_equal_ways(bits, chunks=[5, 22], widths=[3], places=[11], trees=trees)


@pytest.mark.parametrize("family", ["llama", "qwen3-moe", V4])
def test_weights_in_2_bytes_are_not_those_of_float32(family, tmp_path):
    bits = [bits_of(family, tmp_path, length=4, dtype=dtype).one_by_one() for dtype in TYPES]
    assert not any(torch.equal(one, other) for one, other in itertools.combinations(bits, 2))


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
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_packed_blocks_change_no_bit_either(kind, family, tmp_path):
    save_tiny(family, tmp_path)
    keep_blocks(tmp_path, kind)
    text = random.Random(3).choices(range(VOCAB), k=22)
    bits = TextBits(tmp_path, text, vocab=VOCAB, dtype="packed")
    assert_equal_ways(bits, chunks=[5, 22], widths=[3], places=[11], trees=[13])


def long_text_cases():
    """Every family on one thread, and on several one family of each kind of layer."""
    for family in (*WITH_TREES, *RECURRENT, V4):
        for threads in (1, 2, 5):
            is_other = threads > 1 and family not in ON_THREADS
            yield pytest.param(family, threads, marks=[pytest.mark.matrix] if is_other else [])


@pytest.mark.slow
@pytest.mark.parametrize(("family", "threads"), list(long_text_cases()))
def test_no_way_to_compute_a_long_text_changes_a_bit(family, threads, tmp_path):
    with torch_threads(threads):
        length = 70 if family == V4 else 150  # many small operations: a step takes long
        bits = bits_of(family, tmp_path, length=length)
        assert_equal_ways(
            bits,
            chunks=[1, 2, 3, 16, 17, 64, length],
            widths=[2, 3, 4, 5, 8, 9],
            places=[5, length // 2, length - 10],
            trees=range(1, 140, 9) if family in WITH_TREES else [],
        )
