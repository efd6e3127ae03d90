import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.prefix_cache.token_key import TokenKey

few_tokens = st.lists(st.integers(0, 1), max_size=12)


def raw(key: TokenKey) -> list[int]:
    return key.tokens[key.start : key.stop].tolist()


def units(key: TokenKey) -> list[tuple[int, ...]]:
    width = key.lookahead + 1
    return [tuple(raw(key)[i : i + width]) for i in range(len(key))]


def key_of(tokens: list[int], *, lookahead: int) -> TokenKey:
    return TokenKey.of(tokens).looking_ahead(lookahead)


def test_slice_of_a_key_is_a_view_of_the_same_tokens() -> None:
    key = TokenKey.of([5, 6, 7, 8])
    assert raw(key[1:3]) == [6, 7]
    assert raw(key[1:3][1:]) == [7]
    assert key[1:3].tokens is key.tokens


def test_views_have_no_units_in_common_past_their_ends() -> None:
    key = TokenKey.of(list(range(8)))
    assert key[2:5].num_common(key[2:8]) == key[2:8].num_common(key[2:5]) == 3


def test_pair_view_has_one_unit_fewer_than_tokens() -> None:
    assert units(TokenKey.of([5, 6, 7]).looking_ahead(1)) == [(5, 6), (6, 7)]
    assert len(TokenKey.of([5]).looking_ahead(1)) == 0
    assert len(TokenKey.of([]).looking_ahead(1)) == 0


def test_slice_of_a_pair_view_keeps_the_boundary_token() -> None:
    key = TokenKey.of([5, 6, 7, 8]).looking_ahead(1)
    assert raw(key[0:2]) == [5, 6, 7]
    assert raw(key[2:3]) == [7, 8]


def test_empty_slice_of_a_pair_view_has_no_tokens() -> None:
    key = TokenKey.of([5, 6, 7, 8]).looking_ahead(1)
    assert raw(key[2:2]) == []
    assert raw(key[3:]) == []


def test_page_alignment_of_a_pair_view_keeps_one_token_more() -> None:
    key = TokenKey.of(list(range(10))).looking_ahead(1)  # 9 units
    assert len(key.whole_pages(4)) == 8
    assert raw(key.whole_pages(4)) == list(range(9))
    assert raw(key.whole_pages(16)) == []


def test_turning_a_key_into_a_pair_view_allocates_nothing() -> None:
    key = TokenKey.of(range(100_000))
    tracemalloc.start()
    try:
        pairs = key.looking_ahead(1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert pairs.tokens is key.tokens
    assert peak < 4096  # the view object itself; 100,000 tokens are 400,000 bytes


@pytest.mark.parametrize("lookahead", [0, 1, 3])
@given(left=few_tokens, right=few_tokens)
def test_common_units_are_those_of_the_written_out_lists(
    left: list[int], right: list[int], lookahead: int
) -> None:
    ours, theirs = key_of(left, lookahead=lookahead), key_of(right, lookahead=lookahead)
    expected = 0
    for a, b in zip(units(ours), units(theirs), strict=False):
        if a != b:
            break
        expected += 1
    assert ours.num_common(theirs) == expected
    assert ours.num_common(ours) == len(ours)


@pytest.mark.parametrize("lookahead", [0, 1, 3])
@given(tokens=few_tokens, first=st.integers(0, 12), last=st.integers(0, 12))
def test_slices_are_those_of_the_written_out_lists(
    tokens: list[int], first: int, last: int, lookahead: int
) -> None:
    key = key_of(tokens, lookahead=lookahead)
    assert units(key[first:last]) == units(key)[first:last]


@pytest.mark.parametrize("lookahead", [0, 1, 3])
@given(tokens=st.lists(st.integers(0, 9), min_size=5), cut=st.integers(1, 12))
def test_parts_of_a_key_follow_each_other_to_the_whole(
    tokens: list[int], cut: int, lookahead: int
) -> None:
    key = key_of(tokens, lookahead=lookahead)
    cut = min(cut, len(key) - 1)
    assert units(key[:cut].followed_by(key[cut:])) == units(key)


def test_head_tells_pages_apart_by_the_token_after_a_pair_page() -> None:
    same, other = TokenKey.of([1, 2, 3]), TokenKey.of([1, 2, 4])
    assert same.head(2) == other.head(2)
    assert same.looking_ahead(1).head(2) != other.looking_ahead(1).head(2)


def test_comparing_long_keys_is_no_loop_over_tokens() -> None:
    tokens = list(range(100_000))
    key = TokenKey.of(tokens)
    other = TokenKey.of([*tokens[:70_001], -1, *tokens[70_002:]])
    lines = 0

    def count(_frame: object, event: str, _arg: object) -> object:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        same = key.num_common(other)
    finally:
        sys.settrace(before)
    assert same == 70_001
    assert lines < 200  # bisection of 100,000 takes 17 rounds
