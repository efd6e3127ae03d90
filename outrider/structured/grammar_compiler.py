"""Compiles grammars with xgrammar, which is imported when it is used."""

import random
import re
import time
from typing import TYPE_CHECKING, Any

from outrider.errors import RequestError
from outrider.structured.grammar_bounds import NAMES
from outrider.wire.grammar_spec import GrammarSpec, Vocabulary

if TYPE_CHECKING:
    import xgrammar

# Between the elements of a JSON text. Without a bound a small model may write blanks for ever.
MAX_BLANKS = 40
MAX_COMPILED_BYTES = 64 << 20  # an ordinary schema takes one or two megabytes

_PLACE = re.compile(r"^\[\d\d:\d\d:\d\d\] \S+?:\d+: ")  # time and source line of xgrammar
_CHECK = re.compile(r"^Check failed: \(.*?\) is false: ")
_LONGEST_REASON = 200
_TRIAL_TOKENS = 300
_TRIAL_TOKEN_S = 0.1  # of CPU time


def describe_vocabulary(vocabulary: Vocabulary) -> "xgrammar.TokenizerInfo":
    """The vocabulary as xgrammar wants it. Tokens without bytes are never allowed."""
    import xgrammar

    pieces = list(vocabulary.pieces)
    return xgrammar.TokenizerInfo(
        pieces, xgrammar.VocabType.RAW, vocab_size=len(pieces), stop_token_ids=[]
    )


class Compiler:
    """Owns the vocabulary that grammars are compiled for."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        import xgrammar

        self._compiler = xgrammar.GrammarCompiler(
            describe_vocabulary(vocabulary), max_threads=1, cache_enabled=False
        )

    def compile(self, spec: GrammarSpec) -> str:
        """The compiled grammar, serialized; raises RequestError if the spec is wrong."""
        try:
            compiled = self._compile(spec)
            try_out(compiled, NAMES[spec.kind])
        except (RuntimeError, ValueError, TypeError) as error:
            raise RequestError(f"the {NAMES[spec.kind]} is refused: {_reason(error)}") from error
        if compiled.memory_size_bytes > MAX_COMPILED_BYTES:
            raise RequestError(f"the {NAMES[spec.kind]} is too complex; make it smaller")
        return str(compiled.serialize_json())

    def _compile(self, spec: GrammarSpec) -> Any:
        match spec.kind:
            case "json_schema":
                return self._compiler.compile_json_schema(spec.text, max_whitespace_cnt=MAX_BLANKS)
            case "regex":
                return self._compiler.compile_regex(spec.text)
            case "ebnf":
                return self._compiler.compile_grammar(spec.text)
            case "structural_tag":
                return self._compiler.compile_structural_tag(spec.text)
            case "none":
                raise AssertionError("a request without a grammar is not compiled")


def try_out(compiled: Any, name: str) -> None:
    """Match a random text of the grammar, to find here whether that is slow or crashes xgrammar.

    Ambiguous grammars compile fast, but matching takes longer with every token.
    """
    import numpy as np
    import xgrammar

    rng, vocab_size = random.Random(0), compiled.tokenizer_info.vocab_size
    mask = np.zeros((1, -(-vocab_size // 32)), dtype=np.int32)
    end = (compiled.tokenizer_info.special_token_ids or [0])[0]
    matcher = xgrammar.GrammarMatcher(compiled, override_stop_tokens=[end])
    length = 0
    for _ in range(_TRIAL_TOKENS):
        began_s = time.thread_time()
        matcher.fill_next_token_bitmask(mask)
        (allowed,) = np.unpackbits(mask.view(np.uint8), bitorder="little").nonzero()
        onward = allowed[allowed != end]
        if onward.size:
            length += matcher.accept_token(int(onward[rng.randrange(onward.size)]))
        elif length:  # the text is complete: go back one token, so that a longer text is tried
            matcher.rollback(1)
            length -= 1
        if time.thread_time() - began_s > _TRIAL_TOKEN_S:
            raise RequestError(f"the {name} is too ambiguous: matching it takes too long")


def _reason(error: Exception) -> str:
    """The first line of an error message, without the source lines of xgrammar."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return _CHECK.sub("", _PLACE.sub("", line))[:_LONGEST_REASON]
