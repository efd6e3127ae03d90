"""The kernels of prompt chunks, interpreted, at odd sizes."""

import pytest
import torch
from support.attention_cases import SCALE, Model, make_case, run

from outrider.kv.reference_attention import ReferenceAttention

pytest.importorskip("triton")

from outrider.ops.attention import prefill_triton as kernel

SMALL = kernel.PrefillTiles(rows=16, keys=16, num_warps=4)


def place(case):
    shape, chunk = case.shape.chunk, case.scope.chunk
    pages = torch.full((shape.rows, case.shape.pages), -7, dtype=torch.int32)
    bounds = torch.full((3, shape.rows), -7, dtype=torch.int32)
    kernel.place_chunks(
        chunk.rows,
        chunk.starts,
        chunk.counts,
        case.scope.page_table,
        out_pages=pages,
        bounds=bounds,
    )
    return pages, bounds


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
        scale=SCALE,
        tiles=SMALL,
    )
    right = run(ReferenceAttention(page_size=page_size, dtype=model.dtype), case)
    torch.testing.assert_close(out, right, atol=2e-5, rtol=0)
