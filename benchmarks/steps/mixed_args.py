"""The parsed flags of `mixed`. No torch."""

from collections.abc import Iterator
from dataclasses import dataclass

from outrider.errors import ConfigError

CONTEXT = 64  # tokens of a decode row when it begins


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedCase:
    """Decode rows with prompts beside them: in every step come new ones, which it reads whole."""

    rows: int
    nodes: int  # query tokens of a decode row
    prompts: int  # that a step reads
    prompt: int  # tokens of each

    @property
    def decode_tokens(self) -> int:
        return self.rows * self.nodes

    @property
    def prompt_tokens(self) -> int:
        return self.prompts * self.prompt

    @property
    def tokens(self) -> int:
        """Query tokens of a step."""
        return self.decode_tokens + self.prompt_tokens

    @property
    def rows_alone(self) -> int:
        """Rows of a step that only decodes and has as many query tokens."""
        return self.tokens // self.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedWork:
    """Every number of rows with every length of prompts, in every way to decode."""

    rows: tuple[int, ...]
    lengths: tuple[int, ...]
    prompts: int  # a step
    nodes: tuple[int, ...]  # of each way; 1: plain decoding
    steps: int  # that are timed

    def __post_init__(self) -> None:
        for nodes in self.nodes:
            odd = [each for each in self.lengths if self.prompts * each % nodes]
            if odd:
                raise ConfigError(
                    f"prompts of {odd[0]} tokens are no whole rows of {nodes} query tokens; change "
                    "--lengths or --nodes"
                )
        if self.steps < 2:
            raise ConfigError(f"--tokens must be at least 2, got {self.steps}")

    def cases(self, nodes: int) -> Iterator[MixedCase]:
        """The cases of one way."""
        for rows in self.rows:
            for length in self.lengths:
                yield MixedCase(rows=rows, nodes=nodes, prompts=self.prompts, prompt=length)
