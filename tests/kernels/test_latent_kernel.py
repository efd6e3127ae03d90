"""The kernels of latent attention, interpreted at small odd sizes."""

from dataclasses import replace

import pytest
import torch
from support.attention_cases import SCALE, latent_model, make_case, run, trace

from outrider.attention.reference import ReferenceAttention

pytest.importorskip("triton")

from support.latent_cases import check_maps, check_rotated, check_stored

from outrider.kernels import latent as kernel
from outrider.kernels.splits import num_splits, partial_width

SMALL = kernel.Tiles(rows=16, keys=16, split=16)  # many splits at small lengths
LIKE = torch.empty(0)


def attend(case, *, is_whole, is_tree=True, rows_at_once=None):
    views, model = trace(case), case.model
    tiles = replace(SMALL, many=1 if is_whole else 1 << 30)
    splits = num_splits(case.shape.pages * model.page_size, split=tiles.split)
    per_row = case.shape.nodes * splits * partial_width(model.heads, model.latent)
    if is_whole:
        per_row = case.shape.nodes * 2 * model.heads * model.latent
    room = (rows_at_once or case.shape.rows) * per_row
    out = torch.full((case.shape.num_uniform, model.heads, model.latent), float("nan"))
    kernel.attend_uniform(
        case.query,
        case.layer,
        out,
        pages=views["out_pages"],
        lengths=views["out_lengths"],
        limits=views["limits"],
        tails=views["tails"],
        partials=torch.full((room,), float("nan")),
        scale=SCALE,
        is_tree=is_tree,
        tiles=tiles,
    )
    return out


@pytest.mark.parametrize("heads", [3, 16, 20])  # several nodes in a tile; one; a part of one
def test_texts_seen_whole_have_the_bits_of_their_splits(heads):
    case = make_case(latent_model(heads=heads), lengths=[0, 15, 16, 70], nodes=3, seed=heads)
    whole, splits = attend(case, is_whole=True), attend(case, is_whole=False)
    right = run(ReferenceAttention(page_size=case.model.page_size, dtype=torch.float32), case)
    torch.testing.assert_close(whole, right, atol=5e-5, rtol=0)
    assert torch.equal(whole, splits)


@pytest.mark.parametrize("is_whole", [False, True])
def test_texts_past_the_equal_splits_are_merged_too(is_whole):
    case = make_case(latent_model(heads=2, page_size=16), lengths=[1100, 3], seed=4)
    out = attend(case, is_whole=is_whole, is_tree=False)
    right = run(ReferenceAttention(page_size=16, dtype=torch.float32), case)
    torch.testing.assert_close(out, right, atol=5e-5, rtol=0)


@pytest.mark.parametrize("is_whole", [False, True])
def test_rows_run_in_turns_when_the_workspace_is_small(is_whole):
    case = make_case(latent_model(heads=3), lengths=[40, 9, 33], nodes=2, seed=6)
    all_at_once = attend(case, is_whole=is_whole)
    assert torch.equal(all_at_once, attend(case, is_whole=is_whole, rows_at_once=2))


def test_a_shape_with_room_for_longer_texts_changes_no_bit():
    case = make_case(latent_model(heads=3), lengths=[9, 2], nodes=2, seed=5)
    table = case.geometry.page_table
    wide = torch.nn.functional.pad(table, (0, 40 - table.shape[1]))  # 120 positions: 8 splits
    longer = replace(
        case,
        shape=replace(case.shape, pages=40),
        geometry=replace(case.geometry, page_table=wide),
    )
    short = attend(case, is_whole=True)
    for is_whole in (False, True):
        assert torch.equal(short, attend(longer, is_whole=is_whole))


@pytest.mark.parametrize(("num_query", "latent", "rope"), [(1, 32, 16), (7, 24, 6), (3, 20, 8)])
def test_latents_are_normalised_rotated_and_stored(num_query, latent, rope):
    check_stored(num_query, latent, rope, LIKE, atol=1e-5)


@pytest.mark.parametrize(("num_query", "heads"), [(1, 1), (5, 3), (2, 70)])
def test_queries_are_rotated_beside_the_place_of_their_latent_part(num_query, heads):
    check_rotated(num_query, heads, LIKE, atol=1e-5)


@pytest.mark.parametrize(
    ("num_query", "heads", "sizes"),
    [(1, 3, (12, 20)), (19, 2, (33, 16)), (5, 1, (64, 70)), (70, 2, (32, 32))],
)
def test_every_head_has_a_map_of_its_own(num_query, heads, sizes):
    check_maps(num_query, heads, sizes, LIKE, atol=1e-5)
