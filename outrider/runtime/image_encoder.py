"""Embeddings of images, computed when a step first runs one of them."""

from collections import OrderedDict

import torch

from outrider.models.vision.vision_tower import VisionTower
from outrider.wire.image_span import ImageSpan


class ImageEncoder:
    """Owns the vision tower, and the embeddings of the images that were used last.

    A long image runs in several chunks, and requests may share an image. An image that was dropped
    is computed again, with the same bits.
    """

    def __init__(self, tower: VisionTower, *, most_tokens: int) -> None:
        self.tower = tower
        self._most_tokens = most_tokens
        self._num_tokens = 0
        self._encoded: OrderedDict[bytes, torch.Tensor] = OrderedDict()  # by digest, the last last

    def vectors(self, span: ImageSpan) -> torch.Tensor:  # [tokens, hidden]
        digest = span.pixels.digest
        if digest not in self._encoded:
            self._encoded[digest] = self.tower.encode(span.pixels)
            self._num_tokens += span.pixels.num_tokens
        self._encoded.move_to_end(digest)
        encoded = self._encoded[digest]
        while self._num_tokens > self._most_tokens and len(self._encoded) > 1:
            self._num_tokens -= self._encoded.popitem(last=False)[1].shape[0]
        return encoded[span.skipped : span.skipped + span.count]
