"""A captured shape that covers a step: the same work with more padding, and never less room."""

from dataclasses import fields, replace

import pytest

from outrider.step.cover_shape import find_cover
from outrider.step.shape import ChunkShape, SamplingFlags, StepShape
from outrider.wire.draft_budget import Budget

MIXED = StepShape(
    rows=16,
    tree=Budget(steps=4, topk=1, nodes=5),
    chunk=ChunkShape(rows=9, tokens=176, width=176),
    pages=16,
    sampling_flags=SamplingFlags(),
)


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
