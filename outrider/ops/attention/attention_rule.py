"""How a layer scores keys, and which keys of its text a query sees."""

from dataclasses import dataclass

WHOLE_TEXT = 1 << 30  # the window of a layer without sliding window: longer than any text
NO_CAP = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRule:
    """What layers of one model can differ in; backends take it with every call.

    A window counts positions along the query's own text. So a node of a tree sees its ancestors and
    the end of its row's history, as if its path had been decoded token by token.
    """

    scale: float  # of the products of queries and keys
    window: int = WHOLE_TEXT  # the newest keys that a query sees, its own included
    soft_cap: float = NO_CAP  # scores become cap * tanh(score / cap)

    @property
    def has_window(self) -> bool:
        return self.window < WHOLE_TEXT

    @property
    def is_capped(self) -> bool:
        return self.soft_cap > NO_CAP
