"""Input embeddings of chunk tokens: one buffer at a fixed address, staged with the other inputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from outrider.step.arena import Arena
from outrider.step.host_copy import pinned_for
from outrider.step.shape import StepShape
from outrider.wire.embedded_span import EmbeddedSpan
from outrider.wire.image_span import ImageSpan
from outrider.wire.scheduled_batch import ScheduledChunk


@dataclass(frozen=True, slots=True, kw_only=True)
class InputEmbeds:
    """What a step with embeddings reads instead of the embeddings of its chunk tokens."""

    vectors: torch.Tensor  # [chunk.tokens, hidden] only those of embedded tokens are written
    # [chunk.tokens, layers * hidden] what is added to their hidden states after each of the first
    # layers, likewise; the images of most families have none: [chunk.tokens, 0]
    deepstack: torch.Tensor
    is_embedded: torch.Tensor  # [chunk.tokens] int64, 1 where a vector is used


NO_INPUT_EMBEDS = InputEmbeds(
    vectors=torch.empty(0, 0),
    deepstack=torch.empty(0, 0),
    is_embedded=torch.empty(0, dtype=torch.int64),
)


# [tokens, hidden + deepstack] on the device, or pinned
EncodeImage = Callable[[ImageSpan], torch.Tensor]


def refuse_images(span: ImageSpan) -> torch.Tensor:
    """An `EncodeImage` for models that read text only."""
    raise AssertionError(f"there is no vision tower for {span}")


class EmbedsBuffer:
    """Owns the buffer, which is reserved when the first batch with embeddings comes.

    For a model with deepstack it is several times as wide, and reserved at once: then the memory
    that is left for pages is what is really left.
    """

    def __init__(
        self,
        arena: Arena,
        embedding: torch.Tensor,  # [vocab, hidden] of the model
        *,
        most_tokens: int,
        encode_image: EncodeImage = refuse_images,
        num_deepstack: int = 0,  # layers after which images are added to hidden states
    ) -> None:
        self._encode_image = encode_image
        self._arena = arena
        self._most_tokens = most_tokens
        self._hidden_size = embedding.shape[1]
        self._dtype = embedding.dtype
        self._width = (1 + num_deepstack) * self._hidden_size
        self._is_reserved = False
        if num_deepstack:
            self._reserve()

    def bind(self, shape: StepShape, is_embedded: torch.Tensor) -> InputEmbeds:
        """The views of a shape. `is_embedded` is staged with the other inputs."""
        buffer = self._view(shape)
        return InputEmbeds(
            vectors=buffer[:, : self._hidden_size],
            deepstack=buffer[:, self._hidden_size :],
            is_embedded=is_embedded,
        )

    def _view(self, shape: StepShape) -> torch.Tensor:  # [chunk.tokens, hidden + deepstack]
        if not self._is_reserved:
            self._reserve()
        return self._arena.view("embeds", shape.chunk.tokens, self._width)

    def _reserve(self) -> None:
        self._arena.reserve("embeds", self._most_tokens * self._width, self._dtype)
        self._is_reserved = True

    def stage(self, chunks: Sequence[ScheduledChunk], shape: StepShape) -> None:
        """Upload the embeddings of all chunks. The host does not wait."""
        vectors, at = self._view(shape), 0
        for chunk in chunks:
            for span in chunk.embeds:
                self._send(span, vectors[at + span.first : at + span.stop])
            for image in chunk.images:
                own = vectors[at + image.first : at + image.stop]
                own.copy_(self._encode_image(image), non_blocking=True)
            at += len(chunk.tokens)

    def _send(self, span: EmbeddedSpan, vectors: torch.Tensor) -> None:
        """Embeddings of a request are inputs of the first layer alone."""
        rows = torch.frombuffer(bytearray(span.values), dtype=torch.float32).view(-1, span.width)
        inputs = pinned_for(vectors.device, rows.to(self._dtype))
        vectors[:, : span.width].copy_(inputs, non_blocking=True)
        vectors[:, span.width :].zero_()  # an image may have been there
