"""The sizes for which a GPU captures graphs: few, never too small, exact past the last."""

import itertools
from dataclasses import replace
from functools import partial

import pytest

from outrider.engine.adaptive.adaptation import Adaptation
from outrider.ops.linear.linear_limits import MOST_SMALL_ROWS
from outrider.runtime.draft_rungs import _rungs
from outrider.runtime.warmup import list_shapes
from outrider.step.buckets import (
    Buckets,
    Listed,
    Multiples,
    device_buckets,
    has_room_for_padding,
    largest_shape,
)
from outrider.step.shape import ChunkShape, SamplingFlags
from outrider.step.step_sizes import sizes_of
from outrider.wire.draft_budget import PLAIN, PLAIN_RUNG, Budget, whole_rung
from outrider.wire.runner_facts import DraftFacts
from outrider.wire.scheduled_batch import (
    NO_DECODES,
    ScheduledBatch,
    ScheduledChunk,
    ScheduledDecodes,
)

CHAIN = Budget(steps=3, topk=1, nodes=4)


def buckets_of(rows=100, reach=3000, page_size=16):
    return device_buckets(page_size=page_size, max_rows=rows, max_chunks=8, reach=reach)


def rungs(num_rows):
    del num_rows
    return PLAIN_RUNG, whole_rung(CHAIN)


def decodes(count, bound):
    rows = tuple(range(1, count + 1))
    return ScheduledDecodes(
        rows=rows, bounds=(bound,) * count, budgets=(PLAIN,) * count, most_drafts=0
    )


def test_a_size_is_rounded_up_to_the_next_in_the_list_and_kept_past_the_last():
    sizes = Listed((1, 2, 8))
    assert [sizes.up(size) for size in (1, 2, 3, 8, 9, 500)] == [1, 2, 8, 8, 9, 500]


def test_multiples_go_up_to_the_one_that_holds_the_largest_size():
    assert Multiples(3).upto(7) == (3, 6, 9)
    assert Multiples(4).upto(8) == (4, 8)


@pytest.mark.parametrize(("rows", "padded"), [(1, 1), (3, 4), (9, 16), (65, 96), (97, 100)])
def test_rows_are_padded_to_a_captured_number(rows, padded):
    batch = ScheduledBatch(
        step=1, admissions=(), grants=(), chunks=(), decodes=decodes(rows, bound=40)
    )
    shape = buckets_of().fit(sizes_of(batch), sampling_flags=SamplingFlags())
    assert (shape.rows, shape.pages) == (padded, 256 // 16)


@pytest.mark.parametrize(("bound", "tokens"), [(200, 256), (256, 1024), (1000, 1024), (2999, 3008)])
def test_contexts_grow_by_4_up_to_the_longest_text(bound, tokens):
    batch = ScheduledBatch(step=1, admissions=(), grants=(), chunks=(), decodes=decodes(1, bound))
    assert buckets_of().fit(sizes_of(batch), sampling_flags=SamplingFlags()).pages == tokens // 16


def chunk_of(row, count):
    return ScheduledChunk(row=row, start=0, tokens=tuple(range(count)), follower=-1)


@pytest.mark.parametrize(
    ("num_chunks", "tokens", "has_room"), [(1, 9, True), (2, 16, True), (2, 17, False)]
)
def test_padding_needs_a_row_unless_there_is_none(num_chunks, tokens, has_room):
    chunks = tuple(chunk_of(row, 8) for row in range(1, num_chunks + 1))
    batch = ScheduledBatch(step=1, admissions=(), grants=(), chunks=chunks, decodes=NO_DECODES)
    fitted = buckets_of().fit(sizes_of(batch), sampling_flags=SamplingFlags())
    shape = replace(fitted, chunk=ChunkShape(rows=2, tokens=tokens, width=tokens))
    assert has_room_for_padding(batch, shape) == has_room


def test_the_largest_shape_has_a_row_more_for_the_chunk_of_padding():
    one = Multiples(1)
    buckets = Buckets(page_size=4, rows=one, chunk_rows=one, tokens=one, pages=one, chunk_pages=one)
    chunk = ChunkShape(rows=3, tokens=9, width=9)
    largest = largest_shape(rows=2, tree=PLAIN, chunk=chunk, pages=5, buckets=buckets)
    assert largest.chunk.rows == 4


def test_chunks_are_padded_by_a_chunk_of_row_0():
    batch = ScheduledBatch(
        step=1, admissions=(), grants=(), chunks=(chunk_of(1, 100),), decodes=NO_DECODES
    )
    shape = buckets_of().fit(sizes_of(batch), sampling_flags=SamplingFlags())
    assert shape.chunk == ChunkShape(rows=9, tokens=128, width=128)
    assert shape.rows == 0


@pytest.mark.parametrize("counts", [(50,), (1, 49), (10, 10, 10, 20)])
def test_chunks_of_any_lengths_with_one_total_share_a_shape(counts):
    chunks = tuple(chunk_of(row, count) for row, count in enumerate(counts, start=50))
    batch = ScheduledBatch(
        step=1, admissions=(), grants=(), chunks=chunks, decodes=decodes(40, bound=60)
    )
    shape = buckets_of().fit(sizes_of(batch), sampling_flags=SamplingFlags())
    assert shape.rows == 48
    assert shape.num_query == 128  # padded as a whole
    assert shape.chunk == ChunkShape(rows=9, tokens=80, width=80)


def test_the_largest_shape_has_room_for_the_padding_of_any_step():
    buckets = buckets_of(rows=20)
    chunk = ChunkShape(rows=8, tokens=500, width=500)
    largest = largest_shape(rows=20, tree=CHAIN, chunk=chunk, pages=9, buckets=buckets)
    assert largest.chunk.tokens == max(buckets.chunk_tokens(500, num) for num in range(81))
    assert largest.chunk.tokens > 500


@pytest.mark.parametrize("num_rows", [0, 1, 7, 20])
def test_steps_with_chunks_are_too_large_for_the_kernel_that_marks_hidden_states(num_rows):
    # It cannot mark keys. A hidden state is looked at where a token is sampled: at all tokens of a
    # step without chunks, and at the last token of a chunk.
    chunks = (chunk_of(30, 1), chunk_of(31, 2))
    batch = ScheduledBatch(
        step=1, admissions=(), grants=(), chunks=chunks, decodes=decodes(num_rows, bound=8)
    )
    shape = buckets_of(rows=20).fit(sizes_of(batch), sampling_flags=SamplingFlags())
    assert shape.num_query > MOST_SMALL_ROWS


def test_the_largest_width_is_that_of_padding_which_is_longer_than_the_chunks():
    tokens = Multiples(16)
    buckets = Buckets(page_size=4, tokens=tokens)
    chunk = ChunkShape(rows=1, tokens=4, width=4)
    largest = largest_shape(rows=20, tree=PLAIN, chunk=chunk, pages=5, buckets=buckets)
    widths = []
    for num_rows in range(21):
        batch = ScheduledBatch(
            step=1,
            admissions=(),
            grants=(),
            chunks=(chunk_of(30, 4),),
            decodes=decodes(num_rows, bound=8),
        )
        widths.append(buckets.fit(sizes_of(batch), sampling_flags=SamplingFlags()).chunk.width)
    assert largest.chunk.width == max(widths) == 15  # 13 rows and 4 tokens make 17: 15 more


def test_warm_up_visits_every_number_of_rows_the_largest_first_plain_and_drafting():
    buckets = buckets_of(rows=20)
    largest = largest_shape(
        rows=20,
        tree=CHAIN,
        chunk=ChunkShape(rows=8, tokens=512, width=512),
        pages=9,
        buckets=buckets,
    )
    shapes = list_shapes(largest, buckets, rungs)
    totals = [shape.num_query for shape in shapes]
    assert totals == sorted(totals, reverse=True)
    assert len(shapes) < 300  # each takes time and memory before the first request
    decode = {(shape.rows, shape.tree) for shape in shapes if not shape.chunk.rows}
    assert decode == {(rows, tree) for rows in (20, 16, 8, 4, 2, 1) for tree in (PLAIN, CHAIN)}
    assert len(set(shapes)) == len(shapes)


@pytest.mark.parametrize("budget", [CHAIN, Budget(steps=5, topk=4, nodes=16)])
def test_warm_up_captures_what_adaptive_drafting_chooses_for_any_number_of_rows(budget):
    """The half rung has two forms, so there are a quarter more shapes (decision 0023)."""
    buckets = replace(buckets_of(rows=40), is_ragged=True)
    chunk = ChunkShape(rows=8, tokens=512, width=512)
    largest = largest_shape(rows=40, tree=budget, chunk=chunk, pages=9, buckets=buckets)
    alone, shapes = (
        list_shapes(largest, buckets, partial(_rungs, facts_of(budget, is_ranked=is_ranked)))
        for is_ranked in (False, True)
    )
    assert len(shapes) <= 1.25 * len(alone)
    for num_rows in range(1, 41):
        own = Adaptation(budget, is_shared=True)
        for number in own._estimates.open_rungs(num_rows):
            own = Adaptation(budget, is_shared=True)
            own._sizes.of(num_rows).chosen = number
            rung = own.choose(1, num_rows=num_rows, num_prompt=0)
            row = ScheduledDecodes(
                rows=tuple(range(num_rows)),
                bounds=(30,) * num_rows,
                budgets=(rung.tree,) * num_rows,
                most_drafts=rung.drafts * num_rows,
            )
            batch = ScheduledBatch(step=1, admissions=(), grants=(), chunks=(), decodes=row)
            shape = buckets.fit(sizes_of(batch), sampling_flags=SamplingFlags())
            assert shape in shapes, (num_rows, rung)
            assert shape.num_decode_query == shape.rows * rung.nodes


def facts_of(budget, *, is_ranked):
    return DraftFacts(
        budget=budget,
        lead=0,
        lookahead=1,
        needs_text=False,
        is_paced=False,
        is_adaptive=True,
        is_ranked=is_ranked,
    )


def test_warm_up_captures_every_mixed_step_that_a_short_context_can_have():
    buckets = buckets_of(rows=20)
    chunk = ChunkShape(rows=8, tokens=512, width=512)
    largest = largest_shape(rows=20, tree=CHAIN, chunk=chunk, pages=9, buckets=buckets)
    shapes = set(list_shapes(largest, buckets, rungs))
    for num_rows, counts in itertools.product((0, 1, 5, 17), ((3,), (100, 1), (7,) * 8, (400,))):
        batch = ScheduledBatch(
            step=1,
            admissions=(),
            grants=(),
            chunks=tuple(chunk_of(row, count) for row, count in enumerate(counts, start=30)),
            decodes=decodes(num_rows, bound=60),
        )
        assert buckets.fit(sizes_of(batch), sampling_flags=SamplingFlags(noise=True)) in shapes


def test_warm_up_traces_the_drafts_of_few_rows():
    buckets = buckets_of(rows=20)
    chunk = ChunkShape(rows=8, tokens=512, width=512)
    largest = largest_shape(rows=20, tree=CHAIN, chunk=chunk, pages=9, buckets=buckets)
    shapes = list_shapes(largest, buckets, rungs)
    traced = [shape for shape in shapes if shape.sampling_flags.trees]
    assert {(shape.rows, shape.tree, shape.sampling_flags.noise) for shape in traced} == {
        (rows, tree, noise)
        for rows in (1, 2, 4)
        for tree in (PLAIN, CHAIN)
        for noise in (False, True)
    }


@pytest.mark.parametrize(
    "sizes", [Multiples(1), Multiples(16), Multiples(7), Listed((4, 8, 64)), Listed((1, 2, 3))]
)
@pytest.mark.parametrize(("least", "most"), [(1, 1), (5, 5), (3, 9), (1, 100), (60, 70)])
def test_the_most_padding_is_that_of_the_worst_size(sizes, least, most):
    tried = (sizes.up(size) - size for size in range(least, most + 1))
    assert sizes.most_padding(least=least, most=most) == max(tried)


def test_the_most_padding_of_very_many_sizes_takes_no_time():
    assert Multiples(16).most_padding(least=5, most=10**12) == 15
