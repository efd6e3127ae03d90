"""Images of a prompt, as a vision tower reads them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePixels:
    """One image, or one tile of it, resized and cut as the model's image processor does.

    Equal digests mean equal pixels, so neither caches nor comparisons read the values.
    """

    shape: tuple[int, ...]  # of the values
    grid: tuple[int, int]  # rows and columns of embeddings that it becomes
    digest: bytes  # of shape, grid and values
    has_axes: bool = False  # its tokens have rotary positions by row and column (mrope)
    values: bytes = field(repr=False, compare=False)  # uint8

    @property
    def num_tokens(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def shift(self) -> int:
        """What rotary positions of the text after it are moved by: it is as long as its edge."""
        return max(self.grid) - self.num_tokens if self.has_axes else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpan:
    """Embeddings of an image at consecutive positions of a prompt, which has image tokens there.

    They are computed in the step that runs them, so a cached prefix needs no vision tower.
    """

    first: int  # position of the first one
    pixels: ImagePixels
    skipped: int = 0  # embeddings of the image before it
    count: int

    def __len__(self) -> int:
        return self.count

    @property
    def stop(self) -> int:
        """The position after the last."""
        return self.first + self.count

    def row(self, index: int) -> bytes:
        """What tells an embedding from all others, of other images too."""
        return self.pixels.digest + (self.skipped + index).to_bytes(8, "little")

    def from_position(self, position: int) -> "ImageSpan":
        """Those of this position and later ones."""
        skipped = min(max(position - self.first, 0), self.count)
        return replace(
            self,
            first=self.first + skipped,
            skipped=self.skipped + skipped,
            count=self.count - skipped,
        )

    def upto(self, count: int) -> "ImageSpan":
        """The first ones."""
        return replace(self, count=min(max(count, 0), self.count))

    def placed(self, first: int) -> "ImageSpan":
        """The same at another position."""
        return replace(self, first=first)


def image_span(first: int, pixels: ImagePixels) -> ImageSpan:
    """All embeddings of an image."""
    return ImageSpan(first=first, pixels=pixels, count=pixels.num_tokens)


def shift_before(images: Sequence[ImageSpan], position: int) -> int:
    """How far rotary positions are from positions, by the images that end before this one."""
    return sum(image.pixels.shift for image in images if image.stop <= position)
