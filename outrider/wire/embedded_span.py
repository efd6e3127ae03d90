"""Input embeddings that stand in a prompt in place of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from outrider.wire.image_span import ImageSpan
from outrider.wire.positioned_vectors import PositionedVectors


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedSpan(PositionedVectors):
    """Embeddings at consecutive positions of a prompt, which has token 0 there."""


AnySpan = TypeVar("AnySpan", EmbeddedSpan, ImageSpan)


def spans_within(spans: Sequence[AnySpan], start: int, stop: int) -> tuple[AnySpan, ...]:
    """The parts of spans at positions [start, stop), counted from `start`."""
    found = []
    for span in spans:
        part = span.from_position(start).upto(stop - max(span.first, start))
        if len(part):
            found.append(part.placed(part.first - start))
    return tuple(found)
