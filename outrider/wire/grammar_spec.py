"""The grammar of an answer as plain data, and the bytes of every token."""

from dataclasses import dataclass
from typing import Literal

GrammarKind = Literal["none", "json_schema", "regex", "ebnf", "structural_tag"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarSpec:
    """A grammar as the user wrote it. Equal specs are compiled once."""

    kind: GrammarKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """The grammar of one row. It applies to the output, after the prompt."""

    spec: GrammarSpec
    ends: tuple[int, ...]  # ids that may end a complete text; they have no bytes

    @property
    def is_wanted(self) -> bool:
        return self.spec.kind != "none"


NO_GRAMMAR = Grammar(spec=GrammarSpec(kind="none", text=""), ends=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The bytes that every token adds to a text."""

    pieces: tuple[bytes, ...]  # empty for special tokens
