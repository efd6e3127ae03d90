"""The vocabulary of the tiny models and grammars over it, without torch: processes import it."""

from outrider.wire.grammar_spec import GrammarSpec, Vocabulary

VOCAB = 67
END, OTHER_END = 2, 5  # special: they spell nothing, as do 0 and 1
# Single characters and longer pieces, so that one text has many spellings.
PIECES = (
    [b"", b"", b"", b"{", b"}", b"", b'"', b":", b",", b"[", b"]", b" "]
    + [bytes([char]) for char in b"0123456789abcdefghilnorstu-.@"]
    + [b'{"', b'":', b'",', b'"}', b"ab", b"abc", b"bc", b"12", b"00", b"true", b"false", b"red"]
    + [b"gre", b"green", b"en", b"m", b"k", b"ee", b'"a"', b'"b"', b"]}", b'["', b"\n", b"x", b"yz"]
)
TINY = Vocabulary(pieces=(*PIECES, *[b""] * (VOCAB - len(PIECES))))
assert len(TINY.pieces) == VOCAB

SCHEMA = (
    '{"type": "object", "properties": {"a": {"type": "array", "items": {"enum": ["a", "b"]},'
    ' "maxItems": 3}, "b": {"type": "boolean"}}, "required": ["a", "b"]}'
)
SPECS = {
    "json": GrammarSpec(kind="json_schema", text=SCHEMA),
    "regex": GrammarSpec(kind="regex", text="(ab|bc|[0-9]{2,3})+(x|yz)?"),
    "ebnf": GrammarSpec(kind="ebnf", text='root ::= "{" list "}"\nlist ::= [a-c] | [a-c] "," list'),
    "choice": GrammarSpec(kind="ebnf", text='root ::= "red" | "green" | "green abc" | "12"'),
}

# Grammars that are ambiguous: a run of m has so many readings that the matcher takes minutes.
AMBIGUOUS = 's ::= s s s s s s | s s s s s | s s s s | s s s | s s | "m" | ""'
RUNS = Vocabulary(pieces=(*PIECES, *[b""] * (VOCAB - len(PIECES) - 1), b"m" * 64))
# Trials of the compiler do not find the slow branch: it begins with several tokens.
HIDDEN = GrammarSpec(kind="ebnf", text=f'root ::= "abc12x" s | [b-z0-9]+\n{AMBIGUOUS}')
