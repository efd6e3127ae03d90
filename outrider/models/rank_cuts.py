"""Which part of every stored tensor a rank reads, from the shapes that all ranks have."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from outrider.models.tensor_cut import WHOLE, Cut

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredShapes:
    """The tensors of a model, or of the share of one rank."""

    shapes: Mapping[str, Shape]
    # Rows of projections that one tensor has one below the other; empty for a single one.
    parts: Callable[[str], Sequence[int]]

    def parts_along(self, name: str, dim: int) -> Sequence[int]:
        return self.parts(name) or (self.shapes[name][dim],)


class RankCuts:
    """Knows the shapes of the whole model and of all shares of it."""

    def __init__(self, whole: StoredShapes, shares: Sequence[StoredShapes], rank: int) -> None:
        self._whole = whole
        self._shares = shares
        self._rank = rank

    def cut(self, name: str) -> Cut:
        if len(self._shares) == 1:
            return WHOLE
        whole = self._whole.shapes[name]
        dims = {
            dim
            for share in self._shares
            for dim, size in enumerate(share.shapes[name])
            if size != whole[dim]
        }
        if not dims:
            return WHOLE
        (dim,) = dims
        shares = [share.parts_along(name, dim) for share in self._shares]
        return Cut(dim, _ranges(self._whole.parts_along(name, dim), shares, self._rank))


def _ranges(
    whole: Sequence[int], shares: Sequence[Sequence[int]], rank: int
) -> tuple[tuple[int, int], ...]:
    """Where the parts of one rank are among the stored ones."""
    ranges, start = [], 0
    for part, size in enumerate(whole):
        sizes = [share[part] for share in shares]
        first = start + _first(sizes, rank, size)
        ranges.append((first, first + sizes[rank]))
        start += size
    return tuple(ranges)


def _first(sizes: Sequence[int], rank: int, total: int) -> int:
    """Where the part of one rank begins. With fewer heads than ranks, some ranks share one."""
    if sum(sizes) == total:
        return sum(sizes[:rank])
    own = sizes[rank]
    return rank * total // len(sizes) // own * own
