"""Rotary positions of three axes (mrope): time, row and column.

Of text all three are equal. They are the position plus a shift, which images before it cause: an
image takes as many rotary positions as its longer edge has embeddings.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from outrider.wire.image_span import ImageSpan
from outrider.wire.scheduled_batch import ScheduledChunk

NUM_AXES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryAxes:
    """What is added to positions. Both are empty for models whose positions have one axis."""

    shifts: torch.Tensor  # [3, num_query] int64
    of_chunks: torch.Tensor  # [3, chunk.tokens] int64 from the host; [3, 0] in steps without any


NO_AXES = RotaryAxes(
    shifts=torch.empty(NUM_AXES, 0, dtype=torch.int64),
    of_chunks=torch.empty(NUM_AXES, 0, dtype=torch.int64),
)


def chunk_shifts(chunks: Sequence[ScheduledChunk], size: int) -> np.ndarray:
    """The shifts of all chunk tokens, flat: [3 * size]."""
    out, at = np.zeros((NUM_AXES, size), dtype=np.int64), 0
    for chunk in chunks:
        stop, shift, done = at + len(chunk.tokens), chunk.shift, at
        for image in chunk.images:
            first = at + image.first
            out[:, done:first] = shift
            done = first + len(image)
            out[:, first:done] = shift + _image_shifts(image)
            shift += image.pixels.shift
        out[:, done:stop] = shift
        at = stop
    return out.reshape(-1)


def _image_shifts(image: ImageSpan) -> np.ndarray:  # [3, tokens]
    """From the text before the image: all of it is at one time, in rows and columns."""
    index = np.arange(image.skipped, image.skipped + len(image))
    if not image.pixels.has_axes:
        return np.zeros((NUM_AXES, len(index)), dtype=np.int64)
    row, column = np.divmod(index, image.pixels.grid[1])
    return np.stack([-index, row - index, column - index])
