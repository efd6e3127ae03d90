"""A captured shape that covers a step: the same work with more padding, and never less room."""

import gc
import weakref
from dataclasses import fields, replace

import pytest
import torch

from outrider.step.buckets import device_buckets
from outrider.step.cover_shape import ShapeCovers, find_cover
from outrider.step.graph_executor import GraphExecutor
from outrider.step.shape import ChunkShape, SamplingFlags, StepShape
from outrider.step.step_sizes import StepSizes
from outrider.wire.draft_budget import Budget

MIXED = StepShape(
    rows=16,
    tree=Budget(steps=4, topk=1, nodes=5),
    chunk=ChunkShape(rows=9, tokens=176, width=176),
    pages=16,
    sampling_flags=SamplingFlags(),
)


def always(shape):
    return True


def wider(shape, tokens):
    return replace(shape, chunk=replace(shape.chunk, tokens=tokens, width=tokens))


def test_the_cover_with_the_least_padding_is_chosen():
    captured = [wider(MIXED, 230), wider(MIXED, 200), wider(MIXED, 220)]
    assert find_cover(MIXED, captured) == wider(MIXED, 200)


def test_noise_covers_greedy_rows_and_not_the_reverse():
    noisy = replace(MIXED, sampling_flags=SamplingFlags(noise=True))
    assert find_cover(MIXED, [noisy]) == noisy
    assert find_cover(noisy, [MIXED]) is None


@pytest.mark.parametrize("field", [each.name for each in fields(SamplingFlags)])
def test_other_flags_must_agree(field):
    value = 1 if isinstance(getattr(SamplingFlags(), field), bool) is False else True
    other = replace(MIXED, sampling_flags=SamplingFlags(**{field: value}))
    assert find_cover(other, [MIXED]) is None
    assert (find_cover(MIXED, [other]) is None) == (field != "noise")


@pytest.mark.parametrize(
    "smaller",
    [
        replace(MIXED, rows=8, chunk=replace(MIXED.chunk, tokens=216, width=216)),
        replace(MIXED, tree=Budget(steps=3, topk=1, nodes=4)),
        replace(MIXED, pages=8),
        wider(MIXED, 170),
        replace(MIXED, chunk=replace(MIXED.chunk, rows=4)),
        replace(MIXED, chunk=ChunkShape(rows=0, tokens=0, width=0)),
    ],
)
def test_a_shape_without_room_covers_nothing(smaller):
    assert find_cover(MIXED, [smaller]) is None


def test_a_much_larger_shape_is_not_used():
    assert find_cover(MIXED, [wider(MIXED, 1000)]) is None


def test_the_first_tokens_are_free():
    small = replace(MIXED, rows=1, chunk=ChunkShape(rows=9, tokens=3, width=3))
    free = replace(MIXED, rows=4, chunk=ChunkShape(rows=9, tokens=108, width=108))
    assert find_cover(small, [free]) == free


def shape_of(*, rows, prompt, chunks=1):
    """Chains of 3 drafts with prompts beside them, as a GPU pads them."""
    buckets = device_buckets(page_size=16, max_rows=176, max_chunks=8, reach=512)
    sizes = StepSizes(
        decodes=rows,
        tree=Budget(steps=3, topk=1, nodes=4),
        drafts=3 * rows,
        most_cached=100,
        chunks=chunks,
        chunk_tokens=prompt,
        longest_chunk=prompt // chunks,
        last_chunk_end=prompt // chunks,
    )
    return buckets.fit(sizes, sampling_flags=SamplingFlags())


def test_a_shape_that_keeps_coming_leaves_its_cover():
    # Eight rows were captured beside eight prompts of 64 tokens, before one prompt of 448 came.
    start, shape = shape_of(rows=8, prompt=512, chunks=8), shape_of(rows=8, prompt=448)
    assert (start.num_query, shape.num_query) == (640, 512)
    captured = {start}
    covers = ShapeCovers(captured)
    ran = [covers.next_for(shape, always) for _ in range(20)]
    assert ran == [start] * 16 + [shape] * 4  # 16 steps had 2,048 tokens of padding
    captured.add(shape)
    covers.note_capture(shape)
    assert covers.next_for(shape, always) == shape


def test_padding_adds_up_over_steps_of_other_shapes():
    covers = ShapeCovers({wider(MIXED, 200)})
    ran = [covers.next_for(each, always) for _ in range(90) for each in (MIXED, wider(MIXED, 199))]
    assert ran[:170] == [wider(MIXED, 200)] * 170  # 85 times 24 tokens of padding
    assert ran[-2:] == [MIXED, wider(MIXED, 200)]


def test_padding_that_is_free_keeps_its_cover():
    small = replace(MIXED, rows=1, chunk=ChunkShape(rows=9, tokens=3, width=3))
    free = replace(MIXED, rows=4, chunk=ChunkShape(rows=9, tokens=108, width=108))
    covers = ShapeCovers({free})
    assert {covers.next_for(small, always) for _ in range(10_000)} == {free}


def test_a_shape_that_cannot_be_captured_keeps_its_cover():
    refused = set()
    covers = ShapeCovers({wider(MIXED, 230)})
    ran = [covers.next_for(MIXED, lambda shape: shape not in refused) for _ in range(50)]
    assert ran[-1] == MIXED
    refused.add(MIXED)  # its capture failed
    assert covers.next_for(MIXED, lambda shape: shape not in refused) == wider(MIXED, 230)


def test_a_shape_without_a_cover_is_its_own_until_one_is_captured():
    captured = set()
    covers = ShapeCovers(captured)
    assert covers.next_for(MIXED, always) == MIXED
    captured.add(wider(MIXED, 200))
    covers.note_capture(wider(MIXED, 200))
    assert covers.next_for(MIXED, always) == wider(MIXED, 200)


def test_an_executor_is_freed_without_a_collection_of_cycles(monkeypatch):
    """Its captured graphs hold device memory, which `sleep` must return at once."""
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))  # needs a GPU
    executor = GraphExecutor(always)
    executor.cover(MIXED)
    gone = weakref.ref(executor)
    gc.disable()
    try:
        del executor
        assert gone() is None
    finally:
        gc.enable()
