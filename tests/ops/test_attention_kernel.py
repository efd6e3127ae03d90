"""The kernels of decode rows, interpreted: splits, paths, and chains at their own positions."""

from dataclasses import replace

import pytest
import torch
from support.attention_cases import (
    Model,
    assert_same_bits,
    chain_ancestors,
    make_case,
    ragged,
    run,
    trace,
)

from outrider.kv.reference_attention import ReferenceAttention

pytest.importorskip("triton")

from outrider.ops.attention import decode_triton as kernel
from outrider.ops.attention import splits_triton as splits
from outrider.ops.gpu_facts import HOPPER_SHARED

SMALL = kernel.DecodeTiles(keys=16, split=16)  # many splits at small lengths


def attend(case, *, is_tree, tiles, rows_at_once=None, is_whole=False):
    views, tiles = trace(case), replace(tiles, many=1 if is_whole else 1 << 30, worth=1 << 30)
    count = splits.num_splits(case.shape.pages * case.model.page_size, split=tiles.split)
    width = splits.partial_width(case.model.heads, case.model.head_dim)
    room = (rows_at_once or case.shape.rows) * case.shape.nodes * count * width
    out = torch.full(case.query.shape, float("nan"), dtype=case.query.dtype)
    kernel.attend_decode(
        case.query,
        case.layer,
        out,
        pages=views["out_pages"],
        lengths=views["out_lengths"],
        queries=views["out_queries"],
        limits=views["limits"],
        tails=views["tails"],
        partials=torch.full((room,), float("nan")),
        rule=case.model.rule,
        is_tree=is_tree,
        tiles=tiles,
    )
    return out


def split_starts(count, split):
    """The schedule of splits, written the slow way."""
    starts = [index * split for index in range(splits.EQUAL_SPLITS)]
    size = splits.EQUAL_SPLITS * split // 8
    while len(starts) < count + 8:
        starts += [8 * size + i * size for i in range(8)]
        size *= 2
    return starts


def test_splits_cover_any_number_of_positions():
    starts = split_starts(80, 256)
    for keys in [1, 255, 256, 257, 8192, 8193, 9216, 9217, 16384, 16385, 131072, 131073, 10**6]:
        right = sum(start < keys for start in starts)
        assert splits.num_splits(keys) == right, keys
    assert splits.num_splits(131072) == 64


def test_a_trace_lists_the_nodes_of_each_path_in_order():
    case = make_case(Model(), lengths=[4, 0, 31], nodes=9, seed=2)
    views = trace(case)
    for row, length in enumerate([4, 0, 31]):
        assert views["out_lengths"][row] == length
        assert torch.equal(
            views["out_pages"][row].long(), case.scope.page_table[row + 1, : case.shape.pages]
        )
        for node in range(9):
            mask, token = int(case.scope.ancestors[row, node]), row * 9 + node
            path = [n for n in range(64) if mask >> n & 1]
            assert views["limits"][token] == length + len(path)
            assert views["tails"][token, : len(path)].tolist() == path
            assert sorted(views["tails"][token].tolist()) == list(range(64))


@pytest.mark.slow
@pytest.mark.parametrize("is_tree", [False, True])
def test_a_chain_is_the_same_with_and_without_a_tree_kernel(is_tree):
    model = Model(kv_heads=1, group=4)
    case = make_case(model, lengths=[0, 15, 40], nodes=5, ancestors=chain_ancestors(3, 5), seed=3)
    out = attend(case, is_tree=is_tree, tiles=SMALL)
    right = run(ReferenceAttention(page_size=model.page_size, dtype=model.dtype), case)
    torch.testing.assert_close(out, right, atol=2e-5, rtol=0)
    assert torch.equal(out, attend(case, is_tree=not is_tree, tiles=SMALL))


@pytest.mark.slow
def test_texts_past_the_equal_splits_are_merged_too():
    model = Model(kv_heads=1, group=1, page_size=16)
    case = make_case(model, lengths=[1100, 3], seed=4)
    out = attend(case, is_tree=False, tiles=SMALL)
    right = run(ReferenceAttention(page_size=model.page_size, dtype=model.dtype), case)
    torch.testing.assert_close(out, right, atol=2e-5, rtol=0)
    assert torch.equal(out, attend(case, is_tree=False, tiles=SMALL, is_whole=True))


@pytest.mark.slow
@pytest.mark.parametrize("is_tree", [False, True])
def test_texts_read_whole_have_the_bits_of_their_splits(is_tree):
    ancestors = {} if is_tree else {"ancestors": chain_ancestors(3, 4)}
    case = make_case(Model(kv_heads=1), lengths=[0, 16, 70], nodes=4, seed=7, **ancestors)
    splits = attend(case, is_tree=is_tree, tiles=SMALL)
    assert torch.equal(splits, attend(case, is_tree=is_tree, tiles=SMALL, is_whole=True))


def test_one_split_written_directly_has_the_bits_of_a_merge():
    case = make_case(Model(kv_heads=1), lengths=[9, 2], nodes=2, seed=5)
    shape, table = case.shape, case.scope.page_table
    wide = torch.nn.functional.pad(table, (0, 40 - table.shape[1]))  # 120 positions: 4 splits
    longer = replace(
        case,
        shape=replace(shape, pages=40),
        scope=replace(case.scope, page_table=wide),
    )
    tiles = kernel.DecodeTiles(keys=16, split=32)
    direct = attend(case, is_tree=True, tiles=tiles)
    for is_whole in (False, True):
        merged = attend(longer, is_tree=True, tiles=tiles, is_whole=is_whole)
        assert torch.equal(direct, merged)


@pytest.mark.slow
@pytest.mark.parametrize("is_whole", [False, True])
def test_ragged_rows_are_merged_from_splits_and_read_whole(is_whole):
    case = make_case(Model(kv_heads=1, group=2), lengths=[40, 9, 33], nodes=3, seed=8)
    part = ragged(case, absent=[1, 2, 0], padding=1)
    whole = attend(case, is_tree=True, tiles=SMALL, is_whole=is_whole)
    found = attend(part, is_tree=True, tiles=SMALL, is_whole=is_whole, rows_at_once=2)
    assert_same_bits(part, found, whole)


def test_rows_run_in_turns_when_the_workspace_is_small():
    case = make_case(Model(kv_heads=1), lengths=[40, 9, 33], nodes=2, seed=6)
    whole = attend(case, is_tree=True, tiles=SMALL)
    assert torch.equal(whole, attend(case, is_tree=True, tiles=SMALL, rows_at_once=2))


def test_the_workspace_is_bounded():
    width = splits.partial_width(32, 128)
    one_node = splits.num_partials(rows=64, nodes=1, keys=8192, width=width)
    assert one_node == 64 * 32 * width
    assert splits.num_partials(rows=64, nodes=1, keys=256, width=width) == 0
    assert splits.num_partials(rows=256, nodes=64, keys=131072, width=width) == 1 << 26


@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@pytest.mark.parametrize("num_rows", [1, 16, 256])
def test_the_stages_of_a_tile_fit_in_the_shared_memory_of_a_gpu(num_rows, head_dim):
    for shared in (99 << 10, HOPPER_SHARED):
        sizes = {"packed": 4, "num_rows": num_rows, "shared": shared}
        tiles = kernel.decode_tiles(head_dim, torch.bfloat16, **sizes)
        keys_and_values = 2 * tiles.keys * splits.dim_tile(head_dim) * 2
        assert (tiles.num_stages - 1) * keys_and_values + 8192 <= shared
