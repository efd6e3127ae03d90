"""A converted GGUF file keeps its blocks, and a CPU computes with them."""

import random

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.gguf_files import HEAD_DIM, KV_HEADS, random_raw, tiny_gguf
from support.text_bits import TextBits, num_different

from outrider.errors import ConfigError
from outrider.hub import gguf_convert
from outrider.hub.block_file import BLOCK_KINDS, BLOCKS_FILE
from outrider.hub.count_parameters import count_parameters
from outrider.hub.download_progress import SilentReporter
from outrider.hub.gguf_convert import convert
from outrider.models.decoder_loader import load_decoder
from outrider.models.quantised.expert_stacks import StackAxes
from outrider.models.quantised.stored_blocks import StoredBlocks
from outrider.models.safetensors_reader import Checkpoint
from outrider.models.tensor_cut import WHOLE, Cut
from outrider.ops.compiled.block_kind import BLOCK, KINDS
from outrider.ops.linear.block_linear import BlockLinear
from outrider.ops.linear.block_weight import BlockWeight, stack_blocks

CPU = torch.device("cpu")
SCALE = 2.0**-14  # of random spans, so that a weight is about 0.01
VALUES = "blk.0.attn_v.weight"


def converted(folder, *, family="llama", kind="Q4_K", values="Q6_K"):
    """A folder whose values have another kind than its queries and keys, as in Q4_K_M files."""
    tiny, rng = tiny_gguf(family, kind=kind), np.random.default_rng(3)
    for name, (raw, stored) in tiny.tensors.items():
        stored = values if name == VALUES else stored
        if raw.ndim == 2:
            tiny.tensors[name] = (random_raw(rng, len(raw), stored, scale=SCALE), stored)
    convert(tiny.write(folder / "tiny.gguf"), folder, SilentReporter())
    return folder


def text_of(length):
    return random.Random(3).choices(range(200), k=length)


def test_layers_whose_values_have_another_kind_are_one_region(tmp_path):
    decoder = load_decoder(converted(tmp_path), dtype="packed", device=CPU)
    assert isinstance(decoder._parts.head, BlockLinear), "tied to an embedding of blocks"
    assert decoder._stack.compiled is not None
    stored = {each.modules: each.storage for each in decoder.storage}
    assert stored["q_proj, k_proj, v_proj"] == "Q4_K and Q6_K"
    assert (stored["down_proj"], stored["lm_head"]) == ("Q4_K", "Q4_K")
    assert stored["embed_tokens"] == "float32"
    (tmp_path / BLOCKS_FILE).unlink()
    wide = load_decoder(tmp_path, dtype="packed", device=CPU)
    assert {each.storage for each in wide.storage} == {"float32"}


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q4_0", "Q8_0", "Q5_0", "Q5_K"])
def test_logits_are_those_of_the_widened_model(kind, family, tmp_path):
    folder = converted(tmp_path, family=family, kind=kind)
    packed, wide = (
        TextBits(folder, text_of(9), vocab=200, dtype=dtype).one_by_one()
        for dtype in ("packed", "float32")
    )
    assert num_different(packed, wide) == len(wide), "activations are rounded"
    assert (packed - wide).norm() / wide.norm() < 0.05


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K"])
def test_chunks_chains_and_trees_change_no_bit(kind, tmp_path):
    bits = TextBits(converted(tmp_path, kind=kind), text_of(14), vocab=200, dtype="packed")
    right = bits.one_by_one()
    assert num_different(bits.in_chunks(5), right) == 0
    chains = bits.in_chains(3, first=5)
    assert num_different(chains, right[5 : 5 + len(chains)]) == 0
    for position, logits in bits.in_a_tree(7, seed=7):
        assert torch.equal(logits, right[position])


def blocks_of(folder):
    numbers = load_file(folder / "model.safetensors")
    return StoredBlocks(
        folder, {name: tuple(each.shape) for name, each in numbers.items()}
    ), numbers


def test_blocks_have_the_numbers_beside_them(tmp_path):
    blocks, numbers = blocks_of(converted(tmp_path))
    names = [name for name, each in numbers.items() if each.ndim == 2]
    for name in names:
        found = blocks.find(name, WHOLE)
        assert torch.equal(found.widen(), numbers[name]), name
    queries = names[1]
    part = blocks.find(queries, Cut(0, ((16, 48), (64, 80))))
    assert torch.equal(part.widen(), torch.cat([numbers[queries][16:48], numbers[queries][64:80]]))
    assert blocks.find(queries, Cut(1, ((0, 32),))) is None
    assert blocks.find("model.norm.weight", WHOLE) is None


def test_converted_files_keep_the_kinds_that_kernels_read():
    assert {
        name: (kind.span * BLOCK, kind.stored_bytes) for name, kind in KINDS.items()
    } == BLOCK_KINDS


@pytest.fixture
def without_floats(monkeypatch, tmp_path):
    """Two folders of one file: as a small one is converted, and as a large one is."""

    def write(**kinds):
        for name, limit in (("floats", 1 << 40), ("blocks", 0)):
            monkeypatch.setattr(gguf_convert, "_MOST_FLOAT_BYTES", limit)
            (tmp_path / name).mkdir()
            converted(tmp_path / name, **kinds)
        return tmp_path / "floats", tmp_path / "blocks"

    return write


@pytest.mark.fast_cases(99)
@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q8_0", "Q5_1"])
def test_a_large_file_keeps_its_blocks_alone_and_loses_no_number(kind, without_floats):
    floats, blocks = without_floats(kind=kind)
    assert {each.ndim for each in load_file(blocks / "model.safetensors").values()} == {1}
    assert count_parameters(blocks) == count_parameters(floats)
    with Checkpoint(floats) as right, Checkpoint(blocks) as found:
        assert set(found.names) == set(right.names)
        for name in right.names:
            cuts = [Cut(0, ((16, 48),)), Cut(1, ((64, 160),))] if "proj" in name else []
            for cut in (WHOLE, *cuts):
                assert torch.equal(found.read(name, cut), right.read(name, cut)), name


@pytest.mark.parametrize("dtype", ["packed", "float32"])
def test_a_large_file_gives_the_logits_of_a_small_one(dtype, without_floats):
    right, found = (
        TextBits(folder, text_of(9), vocab=200, dtype=dtype).one_by_one()
        for folder in without_floats(kind="Q4_K")
    )
    assert (found - right).abs().max() <= 1e-4 * right.abs().max()


@pytest.mark.parametrize("kind", ["Q4_K", "Q8_0"])
def test_a_gpu_reads_the_codes_of_blocks(kind, tmp_path):
    name = "model.layers.0.mlp.up_proj.weight"
    with Checkpoint(converted(tmp_path, kind=kind)) as found:
        right = found.read_weight(name)
        assert isinstance(right, torch.Tensor)
        found.use_codes(torch.device("cuda"))
        codes = found.read_weight(name)
        part = found.read_weight(name, Cut(1, ((64, 160),)))
        assert torch.equal(found.read(name), right)
    assert (codes.kind, codes.scales.group) == ("int4" if kind == "Q4_K" else "int8", 32)
    assert (codes.widen() - right).abs().max() <= 1e-6 * right.abs().max()
    assert (part.widen() - right[:, 64:160]).abs().max() <= 1e-6 * right.abs().max()


def test_rows_are_picked_across_kinds(tmp_path):
    blocks, numbers = blocks_of(converted(tmp_path))
    prefix = "model.layers.0.self_attn."
    names = [f"{prefix}{letter}_proj.weight" for letter in "qkv"]
    stacked = stack_blocks([blocks.find(name, WHOLE) for name in names])
    assert [piece.name for piece in stacked.pieces] == ["Q4_K", "Q6_K"]
    places = torch.randperm(stacked.shape[0], generator=torch.Generator().manual_seed(1))
    picked = stacked.rows(places)
    assert isinstance(picked, BlockWeight)
    expected = torch.cat([numbers[name] for name in names])[places]
    assert torch.equal(picked.widen(), expected)


def test_blocks_that_are_not_those_of_the_config_are_refused(tmp_path):
    folder = converted(tmp_path)
    stored = load_file(folder / BLOCKS_FILE)
    name = "model.layers.0.self_attn.v_proj.weight.Q6_K"
    assert stored[name].shape[0] == KV_HEADS * HEAD_DIM
    save_file({**stored, name: stored[name][:-1]}, folder / BLOCKS_FILE)
    with pytest.raises(ConfigError, match=r"v_proj.weight do not fit config.json; delete"):
        load_decoder(folder, dtype="packed", device=CPU)
    save_file({**stored, name: stored[name].float()}, folder / BLOCKS_FILE)
    with pytest.raises(ConfigError, match=r"v_proj.weight are not rows of whole blocks"):
        load_decoder(folder, dtype="packed", device=CPU)
    (folder / BLOCKS_FILE).write_bytes(b"no header")
    with pytest.raises(ConfigError, match=r"gguf_blocks.bin is damaged"):
        load_decoder(folder, dtype="packed", device=CPU)


def test_scales_that_are_not_finite_are_named(tmp_path, caplog):
    folder = converted(tmp_path)
    stored = load_file(folder / BLOCKS_FILE)
    stored["model.layers.0.mlp.up_proj.weight.Q4_K"][3, :2] = torch.tensor([0, 0x7E])  # NaN
    save_file(stored, folder / BLOCKS_FILE)
    load_decoder(folder, dtype="packed", device=CPU)
    assert "NaN or infinity in weights (1): model.layers.0.mlp.up_proj.weight;" in caplog.text


def test_quantising_a_folder_of_blocks_again_is_refused(tmp_path):
    folder = converted(tmp_path)
    with Checkpoint(folder) as found, pytest.raises(ConfigError, match="quantised already"):
        found.quantise("fp8", StackAxes(is_transposed=False))
