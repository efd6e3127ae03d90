"""The bytes of single tokens. Joined and decoded as UTF-8 they are the text."""

import re
from itertools import chain

import tokenizers
from tokenizers import decoders

from outrider.errors import ConfigError

BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")  # how a sentencepiece vocabulary writes a byte


def byte_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for.

    Printable Latin-1 bytes stand for themselves; the others are numbered from U+0100 on, in order.
    """
    printable = set(chain(range(0x21, 0x7F), range(0xA1, 0xAD), range(0xAE, 0x100)))
    hidden = (byte for byte in range(256) if byte not in printable)
    shifted = {chr(0x100 + index): byte for index, byte in enumerate(hidden)}
    return {chr(byte): byte for byte in printable} | shifted


BYTE_ALPHABET = byte_alphabet()


def byte_level_bytes(spelling: str) -> bytes:
    """The bytes of a byte-level token. An added token with other characters is its own text."""
    if all(char in BYTE_ALPHABET for char in spelling):
        return bytes(BYTE_ALPHABET[char] for char in spelling)
    return spelling.encode()


class TokenBytes:
    """Owns the bytes of the tokens used so far.

    The library decodes sequences to text, which loses the bytes of an incomplete character. Its
    decoders work token by token, except that the first token may lose its leading space.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        decoder = backend.decoder
        if isinstance(decoder, decoders.CTC | decoders.BPEDecoder):
            raise ConfigError(
                f"the {type(decoder).__name__} decoder of this tokenizer cannot be streamed; "
                "use a model with a byte-level or sentencepiece tokenizer"
            )
        self._backend = backend
        # Decoders are nested, so they are tested by what they do to a newline, not by their type.
        self._is_byte_level = decoder is not None and decoder.decode(["\u010a"]) == "\n"
        self._falls_back_to_bytes = decoder is not None and decoder.decode(["<0x0A>"]) == "\n"
        self._inner: dict[int, bytes] = {}

    def inner(self, token: int) -> bytes:
        """The bytes of a token that follows another one."""
        if token not in self._inner:
            self._inner[token] = self._raw(token) or self._second(token)
        return self._inner[token]

    def first(self, token: int) -> bytes:
        """The bytes of the first token of a text."""
        return self._raw(token) or self._decode([token]).encode()

    def _raw(self, token: int) -> bytes:
        """The bytes that are written in the token's name; empty if only the decoder knows them."""
        spelling = self._backend.id_to_token(token) or ""
        if self._is_byte_level:
            return byte_level_bytes(spelling)
        byte = BYTE_TOKEN.fullmatch(spelling)
        if byte and self._falls_back_to_bytes and byte[1] >= "80":
            return bytes.fromhex(byte[1])
        return b""

    def _second(self, token: int) -> bytes:
        """What a token adds to a text of the same token."""
        return self._decode([token, token])[len(self._decode([token])) :].encode()

    def _decode(self, tokens: list[int]) -> str:
        return self._backend.decode(tokens, skip_special_tokens=False)
