"""Which layers have a recurrent state per row instead of a cache per token. No torch."""

from dataclasses import dataclass

from outrider.ops.recurrent.delta_sizes import DeltaSizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence(DeltaSizes):
    """The recurrent layers of a model and their sizes."""

    layers: frozenset[int]  # the others attend
    window: int  # tokens that the convolution of queries, keys and values reads


@dataclass(frozen=True, slots=True)
class NoRecurrence:
    """Every layer attends."""

    layers: frozenset[int] = frozenset()


NO_RECURRENCE = NoRecurrence()
