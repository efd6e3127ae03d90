"""Parses `allowed_token_ids` and `bad_words` of a request: the tokens that its answer may have."""

from collections.abc import Sequence

from outrider.errors import RequestError
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer
from outrider.wire.row_sampling import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS

MAX_SALT = 1024  # characters, as in vLLM


def check_allowed(tokens: object) -> None:
    """Refuse what is no list of token ids. Null allows all tokens; an empty list allows none."""
    if tokens is None:
        return
    if not isinstance(tokens, Sequence) or isinstance(tokens, str):
        raise RequestError(f"allowed_token_ids must be a list of ids, got {tokens!r}")
    if not tokens:
        raise RequestError("allowed_token_ids allows no token; leave it out to allow all")
    if any(isinstance(token, bool) or not isinstance(token, int) for token in tokens):
        raise RequestError("allowed_token_ids must hold integers")


def check_bad_words(words: object) -> None:
    if words is None:
        return
    if not isinstance(words, Sequence) or isinstance(words, str):
        raise RequestError(f"bad_words must be a list of texts, got {words!r}")
    if any(not isinstance(word, str) or not word.strip() for word in words):
        raise RequestError("bad_words must hold texts that are not blank")
    if len(words) > MAX_BAD_WORDS // 2:
        raise RequestError(f"bad_words has {len(words)} texts; use at most {MAX_BAD_WORDS // 2}")


def check_text(name: str, value: object, *, most: int | None = None) -> None:
    if not isinstance(value, str):
        raise RequestError(f"{name} must be a text, got {value!r}")
    if most is not None and len(value) > most:
        raise RequestError(f"{name} has {len(value)} characters; use at most {most}")
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise RequestError(f"{name} has half a surrogate pair; send valid Unicode")


def bad_word_tokens(
    words: Sequence[str], tokenizer: Tokenizer | NoTokenizer
) -> tuple[tuple[int, ...], ...]:
    """The token sequences of the words: each as a text begins with it, and after a blank.

    A word that no token spells cannot be written, so it has none.
    """
    spelled = (
        tuple(tokenizer.encode(prefix + word.lstrip(), add_special=False))
        for word in words
        if tokenizer.encode(word.lstrip(), add_special=False)
        for prefix in ("", " ")
    )
    sequences = tuple(dict.fromkeys(spelled))
    for sequence in sequences:
        if len(sequence) > MAX_BAD_WORD_TOKENS:
            raise RequestError(
                f"a text of bad_words has {len(sequence)} tokens; use at most "
                f"{MAX_BAD_WORD_TOKENS} for each"
            )
    return sequences
