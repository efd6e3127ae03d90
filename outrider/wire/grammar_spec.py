"""What an answer must look like, as plain data, and the vocabulary it is spelled in."""

from dataclasses import dataclass
from typing import Literal

GrammarKind = Literal["none", "json_schema", "regex", "ebnf", "structural_tag"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarSpec:
    """A grammar as its author wrote it. Equal specs are compiled once."""

    kind: GrammarKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """The grammar of one row's output, which begins after the prompt."""

    spec: GrammarSpec
    ends: tuple[int, ...]  # ids to choose from once the text is complete; they spell nothing

    @property
    def is_asked(self) -> bool:
        return self.spec.kind != "none"


NO_GRAMMAR = Grammar(spec=GrammarSpec(kind="none", text=""), ends=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What every token adds to a text."""

    pieces: tuple[bytes, ...]  # empty for a token that no text contains, such as a special one
