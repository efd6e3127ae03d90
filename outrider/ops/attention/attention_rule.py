"""How a layer scores keys, and which keys of its text a query sees. No torch: configs have it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

WHOLE_TEXT = 1 << 30  # the window of a layer without sliding window: longer than any text
NO_CAP = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionRule:
    """What layers of one model can differ in; backends take it with every call.

    A window counts positions along the query's own text. So a node of a tree sees its ancestors and
    the end of its row's history, as if its path had been decoded token by token.
    """

    scale: float  # of the products of queries and keys
    window: int = WHOLE_TEXT  # the newest keys that a query sees, its own included
    # Texts are cut into attention chunks of so many positions; a query sees keys of its own one.
    attention_chunk: int = WHOLE_TEXT
    soft_cap: float = NO_CAP  # scores become cap * tanh(score / cap)
    # [heads] float32: a score that every query of the head sees besides its keys, and whose value
    # is zero.
    sinks: "torch.Tensor | None" = None

    def __post_init__(self) -> None:
        assert WHOLE_TEXT in (self.window, self.attention_chunk), "a layer has one of the two"

    @property
    def has_window(self) -> bool:
        return self.window < WHOLE_TEXT

    @property
    def has_attention_chunk(self) -> bool:
        return self.attention_chunk < WHOLE_TEXT

    @property
    def signed_window(self) -> int:
        """The window or the attention chunk as one number, for kernels: a chunk is negative.

        Of a text of `limit` keys, the oldest that its last query sees is `limit - window`, or
        `(limit - 1) // chunk * chunk`.
        """
        return -self.attention_chunk if self.has_attention_chunk else self.window

    @property
    def has_sinks(self) -> bool:
        return self.sinks is not None

    @property
    def is_plain(self) -> bool:
        """A softmax of scaled products over the whole text, as in a Llama."""
        is_whole = not (self.has_window or self.has_attention_chunk)
        return is_whole and not (self.is_capped or self.has_sinks)

    @property
    def is_capped(self) -> bool:
        return self.soft_cap > NO_CAP
