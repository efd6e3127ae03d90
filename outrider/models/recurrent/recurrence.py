"""Which layers keep a state per row instead of a cache per token, and of what sizes. No torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """Layers whose past is one matrix per value head, [key_dim, value_dim].

    What makes keys, values and queries is mixed over the last `window` tokens first.
    """

    layers: frozenset[int]  # the others attend
    key_heads: int  # each serves an equal group of value heads
    value_heads: int
    key_dim: int
    value_dim: int
    window: int

    @property
    def keys(self) -> int:
        """Lanes of all keys, and of all queries."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Lanes of all values."""
        return self.value_heads * self.value_dim

    @property
    def qkv(self) -> int:
        """Lanes that are mixed over the window: queries, keys, values."""
        return 2 * self.keys + self.values

    @property
    def node_inputs(self) -> int:
        """Lanes that the state will want of a token: key, value, and two gates per value head."""
        return self.keys + self.values + 2 * self.value_heads

    @property
    def state(self) -> int:
        """Elements of a row's state in one layer."""
        return self.value_heads * self.key_dim * self.value_dim


@dataclass(frozen=True, slots=True)
class NoRecurrence:
    """Every layer attends."""

    layers: frozenset[int] = frozenset()


NO_RECURRENCE = NoRecurrence()
