"""Keys of the radix tree: O(1) views over one token array, compared slice by slice in C."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenKey:
    """A sequence of units: tokens, or runs of neighbouring tokens.

    KV of the target at position i is a function of tokens 0 .. i; draft KV also depends on token
    i+1, and with one module per depth on as many as there are modules. So the units of a head are
    the pairs (t_i, t_i+1), and neighbouring units share all tokens but one:

        lookahead 0    units [a, b)  are made of tokens  [a, b)
        lookahead n    units [a, b)  are made of tokens  [a, b+n), or of none if a == b
    """

    tokens: "array[int]"  # shared by all views of it, never written
    start: int
    stop: int
    lookahead: int = 0
    salt: bytes = b""  # of a key that begins at the root: keys of other salts have other heads

    @classmethod
    def of(cls, tokens: Sequence[int], *, salt: bytes = b"") -> "TokenKey":
        return cls(tokens=array("i", tokens), start=0, stop=len(tokens), salt=salt)

    def looking_ahead(self, lookahead: int) -> "TokenKey":
        """The same tokens, read as runs of `lookahead` + 1 tokens: `lookahead` units fewer."""
        return replace(self, lookahead=lookahead)

    def __len__(self) -> int:
        return max(0, self.stop - self.start - self.lookahead)

    def __getitem__(self, units: slice) -> "TokenKey":
        first, last, step = units.indices(len(self))
        assert step == 1, "a view has no gaps"
        start = self.start + first
        stop = self.start + last + self.lookahead if first < last else start
        return replace(self, start=start, stop=stop, salt=b"" if first else self.salt)

    def whole_pages(self, page_size: int) -> "TokenKey":
        return self[: len(self) // page_size * page_size]

    def head(self, num_units: int) -> bytes:
        """A hashable copy of the first units."""
        stop = self.start + num_units + self.lookahead
        return self.salt + self.tokens[self.start : stop].tobytes()

    def num_common(self, other: "TokenKey") -> int:
        """How many leading units are equal."""
        ours, theirs = self.start, other.start
        same, limit = 0, min(self.stop - ours, other.stop - theirs)  # tokens, not units
        probe = limit  # an edge mostly matches as a whole; if not, bisect
        while same < limit:
            left = self.tokens[ours + same : ours + probe]
            if left == other.tokens[theirs + same : theirs + probe]:
                same = probe
            else:
                limit = probe - 1
            probe = (same + limit + 1) // 2
        return max(0, same - self.lookahead)

    def followed_by(self, other: "TokenKey") -> "TokenKey":
        """Our units and then the other's, which begin with the tokens we looked ahead to."""
        assert len(self) > 0, "an empty key looks ahead to nothing"
        ours = self.tokens[self.start : self.stop]
        theirs = other.tokens[other.start + self.lookahead : other.stop]
        joined = ours + theirs
        return replace(self, tokens=joined, start=0, stop=len(joined))
