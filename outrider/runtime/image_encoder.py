"""Embeddings of images, computed when a step first runs one of them."""

from collections import OrderedDict

import torch

from outrider.models.vision.vision_tower import VisionTower
from outrider.step.host_copy import download
from outrider.wire.image_span import ImagePixels, ImageSpan

_MOST_ON_HOST = 8  # images; no more prompts share a step


class ImageEncoder:
    """Owns the vision tower, and the embeddings of the images that were used last.

    A long image runs in several chunks, beside those of other prompts, and requests may share an
    image. The device has room for few long ones: those with chunks to come wait on the host. An
    image that was dropped is computed again, with the same bits.
    """

    def __init__(self, tower: VisionTower, *, most_tokens: int) -> None:
        self.tower = tower
        self._most_tokens = most_tokens
        self._num_tokens = 0
        self._encoded: OrderedDict[bytes, torch.Tensor] = OrderedDict()  # by digest, the last last
        self._unfinished: set[bytes] = set()  # of these, images with chunks to come
        self._on_host: OrderedDict[bytes, torch.Tensor] = OrderedDict()  # likewise

    def vectors(self, span: ImageSpan) -> torch.Tensor:  # [tokens, hidden + deepstack]
        digest, stop = span.pixels.digest, span.skipped + span.count
        is_last = stop == span.pixels.num_tokens
        waiting = self._on_host.pop(digest, None)
        if waiting is not None and not is_last:
            self._on_host[digest] = waiting
        encoded = self._encode(span.pixels) if waiting is None else waiting
        if is_last:
            self._unfinished.discard(digest)
        elif waiting is None:
            self._unfinished.add(digest)
        self._make_room()
        return encoded[span.skipped : stop]

    def _encode(self, pixels: ImagePixels) -> torch.Tensor:
        if pixels.digest not in self._encoded:
            self._encoded[pixels.digest] = self.tower.encode(pixels)
            self._num_tokens += pixels.num_tokens
        self._encoded.move_to_end(pixels.digest)
        return self._encoded[pixels.digest]

    def _make_room(self) -> None:
        while self._num_tokens > self._most_tokens and len(self._encoded) > 1:
            digest, encoded = self._encoded.popitem(last=False)
            self._num_tokens -= encoded.shape[0]
            if digest in self._unfinished:
                self._unfinished.discard(digest)
                self._on_host[digest] = download(encoded)  # read in the same stream
        while len(self._on_host) > _MOST_ON_HOST:
            self._on_host.popitem(last=False)
