"""Sizes of a gated delta rule."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSizes:
    """The state of a layer is one matrix per value head, [key_dim, value_dim]."""

    key_heads: int  # each serves an equal group of value heads
    value_heads: int
    key_dim: int
    value_dim: int

    @property
    def keys(self) -> int:
        """Channels of all keys, and of all queries."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Channels of all values."""
        return self.value_heads * self.value_dim

    @property
    def qkv(self) -> int:
        """Channels of queries, keys and values together."""
        return 2 * self.keys + self.values

    @property
    def node_inputs(self) -> int:
        """Channels that a token changes the state by: key, value, and two gates per value head."""
        return self.keys + self.values + 2 * self.value_heads

    @property
    def state(self) -> int:
        """Elements of a row's state in one layer."""
        return self.value_heads * self.key_dim * self.value_dim
