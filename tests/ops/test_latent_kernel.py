"""The kernels of latent attention, interpreted at small odd sizes."""

from dataclasses import replace

import pytest
import torch
from support.attention_cases import (
    SCALE,
    assert_same_bits,
    decodes_of_chunk,
    latent_model,
    make_case,
    place,
    ragged,
    run,
    trace,
)

from outrider.kv.reference_attention import ReferenceAttention

pytest.importorskip("triton")

from support.latent_cases import check_head_linear, check_rotated, check_stored

from outrider.ops.attention import latent_decode_triton as kernel
from outrider.ops.attention import latent_prefill_triton as prefill
from outrider.ops.attention import latent_slices_triton as slices
from outrider.ops.attention.splits_triton import partial_width

SMALL = kernel.LatentTiles(rows=16, keys=16, split=16)  # many splits at small lengths
LIKE = torch.empty(0)


def attend(case, *, span, is_tree=True, rows_at_once=None):
    views, model = trace(case), case.model
    splits = slices.num_latent_splits(case.shape.pages * model.page_size, split=SMALL.split)
    per_row = case.shape.nodes * splits * partial_width(model.heads, model.latent)
    room = (rows_at_once or case.shape.rows) * per_row
    out = torch.full((case.shape.num_decode_query, model.heads, model.latent), float("nan"))
    kernel.attend_latent_decode(
        case.query,
        case.layer,
        out,
        pages=views["out_pages"],
        lengths=views["out_lengths"],
        queries=views["out_queries"],
        limits=views["limits"],
        tails=views["tails"],
        partials=torch.full((room,), float("nan")),
        scale=SCALE,
        is_tree=is_tree,
        tiles=SMALL,
        span=span,
    )
    return out


@pytest.mark.slow
@pytest.mark.parametrize("heads", [3, 16, 20])  # several nodes in a tile; one; a part of one
def test_programs_that_read_more_splits_have_the_bits_of_those_that_read_one(heads):
    case = make_case(latent_model(heads=heads), lengths=[0, 16, 108], nodes=2, seed=heads)
    one = attend(case, span=1)
    right = run(ReferenceAttention(page_size=case.model.page_size, dtype=torch.float32), case)
    torch.testing.assert_close(one, right, atol=5e-5, rtol=0)
    for span in (2, 4, 8):  # of 7 splits
        assert torch.equal(attend(case, span=span), one), span


@pytest.mark.slow
@pytest.mark.parametrize("span", [1, 2, 4])  # merged by a second launch, or by each program
def test_ragged_rows_have_the_bits_of_rows_with_all_nodes(span):
    case = make_case(latent_model(heads=3), lengths=[40, 9, 33], nodes=3, seed=8)
    part = ragged(case, absent=[1, 2, 0], padding=1)
    assert_same_bits(part, attend(part, span=span, rows_at_once=2), attend(case, span=span))


@pytest.mark.slow
@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("span", [1, 4, 64])
def test_texts_past_the_short_splits_are_merged_too(span):
    case = make_case(latent_model(heads=2, page_size=16), lengths=[1100, 3], seed=4)
    out = attend(case, span=span, is_tree=False)
    right = run(ReferenceAttention(page_size=16, dtype=torch.float32), case)
    torch.testing.assert_close(out, right, atol=5e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("room", [1 << 26, 1])  # of all tiles; of one tile at a time
def test_a_token_has_the_same_bits_in_a_chunk_and_as_a_decode_row(room, monkeypatch):
    case = make_case(latent_model(heads=2, page_size=16), lengths=[], chunks={1: (0, 70)})
    pages, bounds = place(case)
    out = torch.full((70, 2, case.model.latent), float("nan"))
    monkeypatch.setattr(prefill, "MOST_PARTIALS", max(room, 16 * 4 * (case.model.latent + 2)))
    prefill.attend_latent_chunks(
        case.query, case.layer, out, pages=pages, bounds=bounds, scale=SCALE, tiles=SMALL
    )
    positions = [0, 15, 16, 31, 32, 48, 63, 64, 69]
    alone = attend(decodes_of_chunk(case, positions), span=1, is_tree=False)
    assert torch.equal(out[positions], alone)


def test_splits_meet_without_gaps_and_are_counted():
    for count in (1, 15, 16, 17, 40):
        starts = [index + max(index - slices.SHORT_SPLITS, 0) for index in range(count + 1)]
        assert slices.num_latent_splits(starts[-1] * 512, split=512) == count
        assert slices.num_latent_splits(starts[-1] * 512 + 1, split=512) == count + 1


@pytest.mark.parametrize("span", [1, 4])
def test_rows_run_in_turns_when_the_workspace_is_small(span):
    case = make_case(latent_model(heads=3), lengths=[40, 9, 33], nodes=2, seed=6)
    all_at_once = attend(case, span=span)
    assert torch.equal(all_at_once, attend(case, span=span, rows_at_once=1))


def test_a_shape_with_room_for_longer_texts_changes_no_bit():
    case = make_case(latent_model(heads=3), lengths=[9, 2], nodes=2, seed=5)
    table = case.scope.page_table
    wide = torch.nn.functional.pad(table, (0, 40 - table.shape[1]))  # 120 positions: 8 splits
    longer = replace(
        case,
        shape=replace(case.shape, pages=40),
        scope=replace(case.scope, page_table=wide),
    )
    short = attend(case, span=1)
    for span in (1, 2, 8):
        assert torch.equal(short, attend(longer, span=span))


@pytest.mark.parametrize(
    ("rows", "keys", "programs"),
    [(1, 65536, 144), (32, 65536, 320), (128, 4096, 256), (1, 4096, 16), (128, 500, 256)],
)
def test_the_programs_of_a_step_share_the_cores_evenly(rows, keys, programs):
    way = slices.choose_slices(keys, 512, rows=rows, tiles=2, room=1020)
    assert 2 * rows * way.count == programs


def test_the_workspace_holds_the_partial_results_of_all_splits_up_to_a_bound():
    size = {"nodes": 1, "heads": 128, "latent": 512}
    assert kernel.num_latent_partials(rows=9, keys=1024, **size) == 0
    assert kernel.num_latent_partials(rows=2, keys=65536, **size) == 2 * 40 * 128 * 514
    assert kernel.num_latent_partials(rows=256, keys=65536, **size) == 1 << 26


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
def test_every_head_has_a_weight_of_its_own(num_query, heads, sizes):
    check_head_linear(num_query, heads, sizes, LIKE, atol=1e-5)
