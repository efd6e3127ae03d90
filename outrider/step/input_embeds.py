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
    is_embedded: torch.Tensor  # [chunk.tokens] int64, 1 where a vector is used


NO_INPUT_EMBEDS = InputEmbeds(
    vectors=torch.empty(0, 0), is_embedded=torch.empty(0, dtype=torch.int64)
)


EncodeImage = Callable[[ImageSpan], torch.Tensor]  # [tokens, hidden] on the device, or pinned


def refuse_images(span: ImageSpan) -> torch.Tensor:
    """An `EncodeImage` for models that read text only."""
    raise AssertionError(f"there is no vision tower for {span}")


class EmbedsBuffer:
    """Owns the buffer, which is reserved when the first batch with embeddings comes."""

    def __init__(
        self,
        arena: Arena,
        embedding: torch.Tensor,  # [vocab, hidden] of the model
        *,
        most_tokens: int,
        encode_image: EncodeImage = refuse_images,
    ) -> None:
        self._encode_image = encode_image
        self._arena = arena
        self._most_tokens = most_tokens
        self._hidden_size = embedding.shape[1]
        self._dtype = embedding.dtype
        self._is_reserved = False

    def view(self, shape: StepShape) -> torch.Tensor:  # [chunk.tokens, hidden]
        if not self._is_reserved:
            self._arena.reserve("embeds", self._most_tokens * self._hidden_size, self._dtype)
            self._is_reserved = True
        return self._arena.view("embeds", shape.chunk.tokens, self._hidden_size)

    def stage(self, chunks: Sequence[ScheduledChunk], shape: StepShape) -> None:
        """Upload the embeddings of all chunks. The host does not wait."""
        vectors, at = self.view(shape), 0
        for chunk in chunks:
            for span in chunk.embeds:
                self._send(span, vectors[at + span.first : at + span.stop])
            for image in chunk.images:
                own = vectors[at + image.first : at + image.stop]
                own.copy_(self._encode_image(image), non_blocking=True)
            at += len(chunk.tokens)

    def _send(self, span: EmbeddedSpan, vectors: torch.Tensor) -> None:
        rows = torch.frombuffer(bytearray(span.values), dtype=torch.float32).view(-1, span.width)
        vectors.copy_(pinned_for(vectors.device, rows.to(self._dtype)), non_blocking=True)
