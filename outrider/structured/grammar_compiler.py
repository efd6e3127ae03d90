"""Compiles grammars with xgrammar, which is imported when it is used."""

import re
from typing import TYPE_CHECKING, Any

from outrider.errors import RequestError
from outrider.structured.grammar_bounds import NAMES
from outrider.structured.grammar_trial import try_grammar
from outrider.wire.grammar_spec import GrammarSpec, Vocabulary

if TYPE_CHECKING:
    import xgrammar

# Between the elements of a JSON text. Without a bound a small model may write blanks for ever.
MAX_BLANKS = 40
MAX_COMPILED_BYTES = 64 << 20  # an ordinary schema takes one or two megabytes

_PLACE = re.compile(r"^\[\d\d:\d\d:\d\d\] \S+?:\d+: ")  # time and source line of xgrammar
_CHECK = re.compile(r"^Check failed: \(.*?\) is false: ")
_LONGEST_REASON = 200


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
            try_grammar(compiled, spec)
        except (RuntimeError, ValueError, TypeError) as error:
            raise RequestError(f"the {NAMES[spec.kind]} is refused: {_reason(error)}") from error
        if compiled.memory_size_bytes > MAX_COMPILED_BYTES:
            raise RequestError(f"the {NAMES[spec.kind]} is too complex; make it smaller")
        try:
            return str(compiled.serialize_json())
        except (RuntimeError, MemoryError) as error:  # std::bad_alloc, at the process's bound
            raise RequestError(f"the {NAMES[spec.kind]} is too complex; make it smaller") from error

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


def _reason(error: Exception) -> str:
    """The first line of an error message, without the source lines of xgrammar."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return _CHECK.sub("", _PLACE.sub("", line))[:_LONGEST_REASON]
