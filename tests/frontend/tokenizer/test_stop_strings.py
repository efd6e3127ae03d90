from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.frontend.tokenizer.detokenizer import NewText, StopStrings

letters = st.text("ab", max_size=12)  # two letters make overlapping stop strings likely


def expected(text: str, stops: list[str]) -> tuple[str, str]:
    """Text before the match that completes first, and the match; among equals the longest."""
    found = [stop for stop in stops if text.find(stop) >= 0]
    if not found:
        return text, ""
    best = min(found, key=lambda stop: (text.find(stop) + len(stop), -len(stop)))
    return text[: text.find(best)], best


def feed(scanner: StopStrings, pieces: list[str]) -> tuple[str, str]:
    shown = ""
    for piece in pieces:
        scan = scanner.push(piece)
        shown += scan.text
        if scan.matched:
            return shown + scanner.finish(), scan.matched
    return shown + scanner.finish(), ""


@given(
    text=letters,
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    cuts=st.sets(st.integers(0, 12)),
    include=st.booleans(),
)
def test_the_outcome_depends_on_the_text_and_not_on_its_pieces(
    text: str, stops: list[str], cuts: set[int], include: bool
) -> None:
    edges = sorted({0, *cuts, len(text)} & set(range(len(text) + 1)))
    pieces = [text[a:b] for a, b in pairwise(edges)]
    before, matched = expected(text, stops)
    scanner = StopStrings(tuple(stops), include=include)
    assert feed(scanner, pieces) == (before + matched * include, matched)


@given(text=letters, stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_only_text_that_may_begin_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    scanner, seen, shown = StopStrings(tuple(stops), include=False), "", ""
    for letter in text:
        seen += letter
        scan = scanner.push(letter)
        shown += scan.text
        if scan.matched:
            return
        held = seen.removeprefix(shown)
        assert held == "" or any(stop.startswith(held) for stop in stops)


def test_a_stop_string_split_over_tokens_is_trimmed() -> None:
    scanner = StopStrings(("END",), include=False)
    assert scanner.push("see E") == NewText(text="see ", matched="")
    assert scanner.push("N") == NewText(text="", matched="")
    assert scanner.push("D.") == NewText(text="", matched="END")
    assert scanner.finish() == ""


@pytest.mark.parametrize(
    ("stops", "before", "matched"),
    [
        (("b", "abc"), "xa", "b"),  # completes first, although the other begins first
        (("bc", "abc"), "x", "abc"),  # both complete here
    ],
)
def test_the_first_match_to_complete_wins_then_the_longest(
    stops: tuple[str, ...], before: str, matched: str
) -> None:
    scan = StopStrings(stops, include=False).push("xabc")
    assert scan == NewText(text=before, matched=matched)


def test_a_false_alarm_is_released_by_the_next_token() -> None:
    scanner = StopStrings(("END",), include=False)
    assert scanner.push("EN").text == ""
    assert scanner.push("EN").text == "EN"
    assert scanner.finish() == "EN"
