"""The sizes for which a GPU captures graphs: few, never too small, exact past the last."""

import pytest

from outrider.runtime.warmup import list_shapes
from outrider.step.buckets import Listed, device_buckets, largest_shape
from outrider.step.shape import ChunkShape, SamplingFlags
from outrider.wire.draft_budget import PLAIN, Budget
from outrider.wire.scheduled_batch import (
    NO_DECODES,
    ScheduledBatch,
    ScheduledChunk,
    ScheduledDecodes,
)

CHAIN = Budget(steps=3, topk=1, nodes=4)


def buckets_of(rows=100, reach=3000, page_size=16):
    return device_buckets(page_size=page_size, max_rows=rows, reach=reach)


def decodes(count, bound):
    rows = tuple(range(1, count + 1))
    return ScheduledDecodes(rows=rows, bounds=(bound,) * count, budgets=(PLAIN,) * count)


def test_a_size_is_rounded_up_to_the_next_in_the_list_and_kept_past_the_last():
    sizes = Listed((1, 2, 8))
    assert [sizes.up(size) for size in (1, 2, 3, 8, 9, 500)] == [1, 2, 8, 8, 9, 500]


@pytest.mark.parametrize(("rows", "padded"), [(1, 1), (3, 4), (9, 16), (65, 96), (97, 100)])
def test_rows_are_padded_to_a_captured_number(rows, padded):
    batch = ScheduledBatch(
        step=1, admissions=(), grants=(), chunks=(), decodes=decodes(rows, bound=40)
    )
    shape = buckets_of().fit(batch, sampling_flags=SamplingFlags())
    assert (shape.rows, shape.pages) == (padded, 256 // 16)


@pytest.mark.parametrize(("bound", "tokens"), [(200, 256), (256, 512), (1000, 1024), (2999, 4096)])
def test_contexts_double(bound, tokens):
    batch = ScheduledBatch(step=1, admissions=(), grants=(), chunks=(), decodes=decodes(1, bound))
    assert buckets_of().fit(batch, sampling_flags=SamplingFlags()).pages == tokens // 16


def test_chunks_are_padded_by_a_chunk_of_row_0():
    chunk = ScheduledChunk(row=1, start=0, tokens=tuple(range(100)), follower=-1)
    batch = ScheduledBatch(step=1, admissions=(), grants=(), chunks=(chunk,), decodes=NO_DECODES)
    shape = buckets_of().fit(batch, sampling_flags=SamplingFlags())
    assert shape.chunk == ChunkShape(rows=2, tokens=128, width=128)
    assert shape.rows == 0


def test_warm_up_visits_every_number_of_rows_the_largest_first_plain_and_drafting():
    buckets = buckets_of(rows=20)
    largest = largest_shape(
        rows=20,
        tree=CHAIN,
        chunk=ChunkShape(rows=8, tokens=512, width=512),
        pages=9,
        buckets=buckets,
    )
    shapes = list(list_shapes(largest, buckets))
    assert list(dict.fromkeys(shape.rows for shape in shapes)) == [20, 16, 8, 4, 2, 1]
    assert {shape.tree for shape in shapes} == {PLAIN, CHAIN}
    assert len(set(shapes)) == len(shapes)


def test_warm_up_traces_the_drafts_of_few_rows():
    buckets = buckets_of(rows=20)
    chunk = ChunkShape(rows=8, tokens=512, width=512)
    largest = largest_shape(rows=20, tree=CHAIN, chunk=chunk, pages=9, buckets=buckets)
    traced = [shape for shape in list_shapes(largest, buckets) if shape.sampling_flags.trees]
    assert {(shape.rows, shape.tree, shape.sampling_flags.noise) for shape in traced} == {
        (rows, tree, noise)
        for rows in (1, 2, 4)
        for tree in (PLAIN, CHAIN)
        for noise in (False, True)
    }
