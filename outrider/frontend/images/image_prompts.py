"""Prompts with images: their placeholders become image tokens, each with a place in an image."""

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol

from outrider.errors import RequestError
from outrider.frontend.images.given_image import GivenImage, decoding, fetched, open_image
from outrider.frontend.images.image_limits import DEFAULT_LIMITS, ImageLimits
from outrider.frontend.images.image_messages import (
    ImageConversation,
    has_images,
    take_images,
)
from outrider.frontend.images.image_processor import ImageProcessor, ProcessedImage, load_processor
from outrider.frontend.prompts import Message, TextPrompt, TokenPrompt
from outrider.hub.vision_config import VisionConfig
from outrider.wire.image_span import ImagePixels, ImageSpan, image_span

Encode = Callable[[str], Sequence[int]]


class PromptImages(Protocol):
    """How a front end takes images."""

    def take(self, messages: Sequence[Message]) -> ImageConversation:
        """The images of a conversation, and its messages without them."""
        ...

    def expand(self, prompt: TextPrompt, encode: Encode) -> TokenPrompt:
        """The tokens of a prompt with images."""
        ...


class TextOnly:
    """For models that read text only, or whose vision tower is not supported."""

    def __init__(self, missing: str = "") -> None:
        self._missing = missing  # what to do so that images are read, where the model could

    def take(self, messages: Sequence[Message]) -> ImageConversation:
        if has_images(messages):
            raise self._refusal()
        return ImageConversation(messages, ())

    def expand(self, prompt: TextPrompt, encode: Encode) -> TokenPrompt:
        del prompt, encode
        raise self._refusal()

    def _refusal(self) -> RequestError:
        fix = self._missing or "load a model that reads images (docs/images.md)"
        return RequestError(
            "this model reads text only here, and the prompt has an image; leave the image out, or "
            + fix
        )


TEXT_ONLY = TextOnly()


class ImagePrompts:
    """Owns the image processor of a model."""

    def __init__(
        self, processor: ImageProcessor, *, image_token: int, limits: ImageLimits = DEFAULT_LIMITS
    ) -> None:
        self._processor = processor
        self._image_token = image_token
        self._limits = limits

    def take(self, messages: Sequence[Message]) -> ImageConversation:
        if not has_images(messages):
            return ImageConversation(messages, ())
        return take_images(messages, self._limits)

    def expand(self, prompt: TextPrompt, encode: Encode) -> TokenPrompt:
        self._limits.check_count(len(prompt.images))
        pieces = prompt.text.split(self._processor.placeholder)
        if len(pieces) - 1 != len(prompt.images):
            raise RequestError(
                f"the prompt has {len(pieces) - 1} times {self._processor.placeholder} for "
                f"{len(prompt.images)} images; write it once where each image belongs"
            )
        processed = [self._process(each) for each in prompt.images]
        text = pieces[0] + "".join(
            each.text + piece for each, piece in zip(processed, pieces[1:], strict=True)
        )
        tokens = tuple(encode(text))
        tiles = [tile for each in processed for tile in each.tiles]
        return TokenPrompt(tokens, images=self._place(tokens, tiles))

    def _process(self, given: GivenImage) -> ProcessedImage:
        given = fetched(given)  # others decode meanwhile
        with decoding:
            image = open_image(given)
            try:
                return self._processor.process(image)
            except ValueError as error:  # such as an image that is too long and narrow
                raise RequestError(f"an image cannot be used ({error})") from error

    def _place(self, tokens: Sequence[int], tiles: Sequence[ImagePixels]) -> tuple[ImageSpan, ...]:
        """Image tokens belong to the tiles in order; those of a tile are neighbours."""
        places = iter([at for at, token in enumerate(tokens) if token == self._image_token])
        spans = []
        for tile in tiles:
            own = list(islice(places, tile.num_tokens))
            if len(own) < tile.num_tokens or own[-1] - own[0] != tile.num_tokens - 1:
                raise _wrong_tokens()
            spans.append(image_span(own[0], tile))
        if next(places, None) is not None:
            raise _wrong_tokens()
        return tuple(spans)


def open_image_prompts(
    folder: Path, vision: VisionConfig, limits: ImageLimits = DEFAULT_LIMITS
) -> PromptImages:
    """For the model in a folder. Imports transformers if the model reads images."""
    if not vision.reads_images:
        return TextOnly(vision.missing)
    processor = load_processor(folder, vision)
    return ImagePrompts(processor, image_token=vision.image_token, limits=limits)


def _wrong_tokens() -> RequestError:
    return RequestError(
        "the image tokens of the prompt do not fit its images; use the tokenizer files that belong "
        "to the model"
    )
