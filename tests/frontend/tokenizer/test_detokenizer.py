from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.frontend.request_state import text_stream
from outrider.frontend.sampling_params import SamplingParams
from outrider.frontend.tokenizer.detokenizer import Detokenizer
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer

BROKEN = "\ufffd"
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"  # three emoji and two joiners: 18 bytes
ids = st.lists(st.integers(0, 335), max_size=24)  # a few lie past the end of each vocabulary
Make = Callable[[tokenizers.Tokenizer], Tokenizer]


def stream(detokenizer: Detokenizer, tokens: Iterable[int]) -> list[str]:
    return [*(detokenizer.push([token]) for token in tokens), detokenizer.finish()]


def byte_tokens(raw: bytes) -> list[int]:
    """Ids of bytes in the sentencepiece vocabulary."""
    return [3 + byte for byte in raw]


@given(text=st.text(), tail=st.text(), skip_special=st.booleans())
@settings(deadline=None)
def test_streamed_text_equals_decoding_prompt_and_answer_at_once(
    tokenizer: Tokenizer, backend: tokenizers.Tokenizer, text: str, tail: str, skip_special: bool
) -> None:
    prompt = tokenizer.encode(tail, add_special=True)
    answer = tokenizer.encode(text, add_special=False)
    detokenizer = Detokenizer(tokenizer, skip_special=skip_special, prompt_tail=prompt)
    before = backend.decode(prompt, skip_special_tokens=skip_special)
    whole = backend.decode(prompt + answer, skip_special_tokens=skip_special)
    assert before + "".join(stream(detokenizer, answer)) == whole


@given(tokens=ids, skip_special=st.booleans())
@settings(deadline=None)
def test_any_ids_stream_to_their_whole_decoding(
    tokenizer: Tokenizer, tokens: list[int], skip_special: bool
) -> None:
    pieces = stream(Detokenizer(tokenizer, skip_special=skip_special), tokens)
    assert "".join(pieces) == tokenizer.decode(tokens, skip_special=skip_special)


@given(tokens=ids)
@settings(deadline=None)
def test_only_one_unfinished_character_is_ever_held_back(
    tokenizer: Tokenizer, tokens: list[int]
) -> None:
    detokenizer, shown = Detokenizer(tokenizer, skip_special=True), ""
    for end, token in enumerate(tokens, start=1):
        shown += detokenizer.push([token])
        now = tokenizer.decode(tokens[:end], skip_special=True)
        assert now.startswith(shown)
        assert now.removeprefix(shown) in ("", BROKEN, BROKEN * 2)  # two: half of a surrogate


@given(tokens=ids, cuts=st.lists(st.integers(0, 24)))
@settings(deadline=None)
def test_pushing_several_tokens_at_once_changes_nothing(
    tokenizer: Tokenizer, tokens: list[int], cuts: list[int]
) -> None:
    detokenizer = Detokenizer(tokenizer, skip_special=True)
    edges = sorted({0, *cuts, len(tokens)})
    pieces = [detokenizer.push(tokens[a:b]) for a, b in pairwise(edges)]
    whole = tokenizer.decode(tokens, skip_special=True)
    assert "".join(pieces) + detokenizer.finish() == whole


@given(tail=ids, tokens=ids)
@settings(deadline=None)
def test_an_answer_may_complete_a_character_of_the_prompt(
    tokenizer: Tokenizer, tail: list[int], tokens: list[int]
) -> None:
    detokenizer = Detokenizer(tokenizer, skip_special=True, prompt_tail=tail)
    answer = "".join(stream(detokenizer, tokens))
    prompt = tokenizer.decode(tail, skip_special=True)
    whole = tokenizer.decode(tail + tokens, skip_special=True)
    # The unfinished end of a prompt is one U+FFFD, or two for half of a surrogate.
    held = [prompt.removesuffix(BROKEN * num) for num in range(3)]
    assert whole in [each + answer for each in held]


@given(tail=ids, tokens=st.lists(st.integers(0, 1), max_size=3))
@settings(deadline=None)
def test_an_answer_without_bytes_has_no_text(
    byte_level: tokenizers.Tokenizer, make: Make, tail: list[int], tokens: list[int]
) -> None:
    detokenizer = Detokenizer(make(byte_level), skip_special=True, prompt_tail=tail)
    assert "".join(stream(detokenizer, tokens)) == ""  # ids 0 and 1 are special


@pytest.mark.parametrize("end", [b"\xe4", b"\xe4\xbd", b"\xed\xa0", b"\xf0\x9f\x91"])
def test_a_prompt_may_end_inside_a_character(
    stripping: tokenizers.Tokenizer, make: Make, end: bytes
) -> None:
    tokenizer, tail = make(stripping), byte_tokens(b"x" + end)
    for answer in (b"", b"a", b"\x80", b"\x80\x80", b"\xe4"):
        tokens = byte_tokens(answer)
        detokenizer = Detokenizer(tokenizer, skip_special=True, prompt_tail=tail)
        text = "".join(stream(detokenizer, tokens))
        whole = tokenizer.decode(tail + tokens, skip_special=True)
        shown = "x" if answer else tokenizer.decode(tail, skip_special=True)
        assert shown + text == whole


def test_an_emoji_appears_with_its_last_byte(stripping: tokenizers.Tokenizer, make: Make) -> None:
    pieces = stream(Detokenizer(make(stripping), skip_special=True), byte_tokens(FAMILY.encode()))
    shown = [piece for piece in pieces if piece]
    assert shown == list(FAMILY)
    assert pieces[3] == FAMILY[0]  # its fourth byte came with the fourth token


@pytest.mark.parametrize(
    ("raw", "pieces"),
    [
        (b"\xe4\xbd", ["", "", BROKEN]),  # never completed
        (b"\xe4\xbda", ["", "", BROKEN + "a", ""]),  # refuted by the next byte
        (b"\xff\xff", [BROKEN, BROKEN, ""]),  # cannot begin a character
        (b"\xed\xa0\x80", ["", "", BROKEN * 3, ""]),  # a surrogate is not a character
        ("\u4f60".encode() + b"\xff", ["", "", "\u4f60", BROKEN, ""]),  # stays as shown
    ],
)
def test_invalid_bytes_become_replacement_characters(
    stripping: tokenizers.Tokenizer, make: Make, raw: bytes, pieces: list[str]
) -> None:
    detokenizer = Detokenizer(make(stripping), skip_special=True, prompt_tail=[3 + ord("x")])
    assert stream(detokenizer, byte_tokens(raw)) == pieces


def test_an_answer_completes_a_character_whose_bytes_are_many_tokens_of_the_prompt(
    stripping: tokenizers.Tokenizer, make: Make
) -> None:
    *prompt, last = byte_tokens(FAMILY[0].encode())
    for skipped in ([], [1], [1, 2]):  # special tokens without text
        text = text_stream(SamplingParams(), (*prompt, *skipped), make(stripping))
        assert text.push(last).text == FAMILY[0]


def test_an_answer_keeps_its_leading_space_only_after_a_prompt(
    stripping: tokenizers.Tokenizer, make: Make
) -> None:
    tokenizer = make(stripping)
    answer = [stripping.token_to_id("\u2581the")]
    opening = Detokenizer(tokenizer, skip_special=True, prompt_tail=[1])  # <s> shows nothing
    after_text = Detokenizer(tokenizer, skip_special=True, prompt_tail=[*answer])
    after_shown_token = Detokenizer(tokenizer, skip_special=False, prompt_tail=[1])
    assert opening.push(answer) == "the"
    assert after_text.push(answer) == " the"
    assert after_shown_token.push(answer) == " the"


def test_a_skipped_token_inside_a_character_does_not_break_it(
    stripping: tokenizers.Tokenizer, make: Make
) -> None:
    first, *rest = byte_tokens("\u4f60".encode())
    tokens = [first, 2, *rest]
    assert "".join(stream(Detokenizer(make(stripping), skip_special=True), tokens)) == "\u4f60"
    shown = "".join(stream(Detokenizer(make(stripping), skip_special=False), tokens))
    assert shown == f"{BROKEN}</s>{BROKEN * 2}"


def test_without_a_tokenizer_the_text_is_empty() -> None:
    detokenizer = Detokenizer(NoTokenizer(eos_ids=frozenset()), skip_special=True)
    assert stream(detokenizer, [1, 2, 3]) == ["", "", "", ""]
