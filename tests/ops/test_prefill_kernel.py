"""The kernels of prompt chunks, interpreted, at odd sizes."""

import pytest
import torch
from support.attention_cases import Model, decodes_of_chunk, make_case, place, run, trace

from outrider.kv.reference_attention import ReferenceAttention

pytest.importorskip("triton")

from outrider.ops.attention import decode_triton, splits_triton
from outrider.ops.attention import prefill_triton as kernel

SMALL = kernel.PrefillTiles(rows=16, keys=16, split=32, num_warps=4)
SMALL_DECODE = decode_triton.DecodeTiles(rows=16, keys=16, split=32)


def test_chunks_know_their_start_their_first_token_and_their_count():
    chunks = {row: (row, row % 3 + 1) for row in range(1, 71)}  # more than are counted at once
    pages, bounds = place(make_case(Model(), lengths=[], chunks=chunks))
    counts = torch.tensor([count for _, count in chunks.values()])
    assert bounds[0].tolist() == list(range(1, 71))
    assert bounds[1].tolist() == (counts.cumsum(0) - counts).tolist()
    assert bounds[2].tolist() == counts.tolist()
    assert (pages > 0).all()


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize(("group", "head_dim"), [(1, 64), (3, 80), (4, 16)])
def test_chunk_tokens_see_what_is_before_them(page_size, group, head_dim):
    model = Model(kv_heads=2, group=group, head_dim=head_dim, page_size=page_size)
    case = make_case(model, lengths=[], chunks={3: (0, 1), 1: (14, 21), 2: (16, 16)}, seed=group)
    pages, bounds = place(case)
    out = torch.full(case.query.shape, float("nan"))
    kernel.attend_chunks(
        case.query,
        case.layer,
        out,
        pages=pages,
        bounds=bounds,
        rule=case.model.rule,
        tiles=SMALL,
    )
    right = run(ReferenceAttention(page_size=page_size, dtype=model.dtype), case)
    torch.testing.assert_close(out, right, atol=2e-5, rtol=0)


def attend_decode(case):
    views = trace(case)
    count = splits_triton.num_splits(case.shape.pages * case.model.page_size, split=32)
    width = splits_triton.partial_width(case.model.heads, case.model.head_dim)
    out = torch.full(case.query.shape, float("nan"))
    decode_triton.attend_decode(
        case.query,
        case.layer,
        out,
        queries=views["out_queries"],
        pages=views["out_pages"],
        lengths=views["out_lengths"],
        limits=views["limits"],
        tails=views["tails"],
        partials=torch.full((case.shape.rows * count * width,), float("nan")),
        rule=case.model.rule,
        is_tree=False,
        tiles=SMALL_DECODE,
    )
    return out


def test_a_token_has_the_same_bits_in_a_chunk_and_as_a_decode_row():
    case = make_case(Model(kv_heads=1, group=1, page_size=16), lengths=[], chunks={1: (0, 100)})
    pages, bounds = place(case)
    out = torch.full(case.query.shape, float("nan"))
    kernel.attend_chunks(
        case.query, case.layer, out, pages=pages, bounds=bounds, rule=case.model.rule, tiles=SMALL
    )
    positions = [0, 15, 16, 31, 32, 47, 63, 64, 99]  # around borders of blocks and of splits
    alone = attend_decode(decodes_of_chunk(case, positions))
    assert torch.equal(out[positions], alone)
