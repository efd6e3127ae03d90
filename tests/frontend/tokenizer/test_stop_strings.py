"""Stop strings are found where a search of the whole text finds them, in linear time."""

from hypothesis import given
from hypothesis import strategies as st

from outrider.frontend.tokenizer import detokenizer
from outrider.frontend.tokenizer.detokenizer import StopStrings

texts = st.text(alphabet="ab", max_size=30)
stop_lists = st.lists(st.text(alphabet="ab", min_size=1, max_size=6), min_size=1, max_size=4)


def reference(text, stops):
    """The text before the stop string that completes first, and that stop string."""
    ends = {stop: text.find(stop) + len(stop) for stop in stops if stop in text}
    if not ends:
        return text, ""
    matched = min(ends, key=lambda stop: (ends[stop], -len(stop)))
    return text[: ends[matched] - len(matched)], matched


@given(text=texts, stops=stop_lists, cuts=st.lists(st.integers(1, 5), min_size=1))
def test_any_division_of_a_text_stops_where_a_search_does(text, stops, cuts):
    strings, shown, matched, place, turn = StopStrings(tuple(stops), include=False), "", "", 0, 0
    while place < len(text) and not matched:
        size = cuts[turn % len(cuts)]
        new = strings.push(text[place : place + size])
        shown, matched, place, turn = shown + new.text, new.matched, place + size, turn + 1
        assert text.startswith(shown)
    shown += "" if matched else strings.finish()
    assert (shown, matched) == reference(text, stops)


def test_long_stop_strings_that_almost_match_cost_a_few_steps_a_character(monkeypatch):
    num_steps = 0

    class Counted(tuple):
        def __getitem__(self, index):
            nonlocal num_steps
            num_steps += 1
            return super().__getitem__(index)

    make = detokenizer.fallbacks
    monkeypatch.setattr(detokenizer, "fallbacks", lambda stop: Counted(make(stop)))
    stops = ("a" * 1000 + "b", "a" * 500 + "b" + "a" * 500)
    strings = StopStrings(stops, include=False)
    text = "a" * 1000 + "c" + "a" * 600 + "ba" * 200
    shown = "".join(strings.push(char).text for char in text) + strings.finish()
    assert shown == text
    assert num_steps <= 2 * len(text)  # one fallback a character and stop string, in the mean
