"""The bytes of each token of a model, for grammars."""

from pathlib import Path

from outrider.errors import RequestError
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer, load_tokenizer
from outrider.wire.grammar_spec import Vocabulary


def read_vocabulary(folder: Path) -> Vocabulary:
    """The vocabulary of the model in a folder."""
    return vocabulary_of(load_tokenizer(folder))


def vocabulary_of(tokenizer: Tokenizer | NoTokenizer) -> Vocabulary:
    """The bytes of every token. Special tokens have none, so that no text can contain them."""
    if isinstance(tokenizer, NoTokenizer):
        raise RequestError("structured output needs a tokenizer, and this model has none")
    return Vocabulary(
        pieces=tuple(
            tokenizer.token_bytes(token) if tokenizer.is_shown(token, skip_special=True) else b""
            for token in range(tokenizer.vocab_size)
        )
    )
