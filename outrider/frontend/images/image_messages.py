"""Images in messages: taken out, and replaced by a part that chat templates know."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.errors import RequestError
from outrider.frontend.images.given_image import GivenImage, image_at, image_of
from outrider.frontend.images.image_limits import ImageLimits
from outrider.frontend.prompts import Message
from outrider.frontend.tokenizer.chat_template import ContentParts

_IMAGE_TYPES = ("image_url", "image", "image_pil", "input_image")
_IMAGE_PART = {"type": "image"}  # as processors of transformers write it


@dataclass(frozen=True, slots=True)
class ImageConversation:
    """Messages for the chat template, and the images in their order."""

    messages: Sequence[Message]
    images: tuple[GivenImage, ...]


def has_images(messages: object) -> bool:
    """Whether some part of some message is an image."""
    return isinstance(messages, Sequence) and any(
        _is_image(part) for message in messages for part in _parts(message)
    )


def take_images(messages: Sequence[Message], limits: ImageLimits) -> ImageConversation:
    """The messages without the images themselves."""
    limits.check_count(sum(_is_image(part) for each in messages for part in _parts(each)))
    images: list[GivenImage] = []
    taken = [_without_images(message, images, limits) for message in messages]
    return ImageConversation(taken, tuple(images))


def _without_images(message: Message, images: list[GivenImage], limits: ImageLimits) -> Message:
    parts = _parts(message)
    if not any(map(_is_image, parts)):
        return message
    contents = ContentParts()
    for part in parts:
        if _is_image(part):
            images.append(_read_part(part, limits))
            contents.append(_IMAGE_PART)
        else:
            contents.append(_text_part(part))
    return {**message, "content": contents}


def _parts(message: object) -> Sequence[Any]:
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, list | tuple) else ()


def _is_image(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") in _IMAGE_TYPES


def _read_part(part: Mapping[str, Any], limits: ImageLimits) -> GivenImage:
    """Parts of OpenAI's two APIs, of vLLM's and of transformers' chats."""
    given = part.get(part["type"], part.get("image_url", part.get("url")))
    if isinstance(given, Mapping):
        given = given.get("url")
    return image_at(given, limits) if given is None or isinstance(given, str) else image_of(given)


def _text_part(part: object) -> dict[str, str]:
    if isinstance(part, Mapping) and part.get("type") == "text":
        text = part.get("text")
        if isinstance(text, str):
            return {"type": "text", "text": text}
    raise RequestError(
        'a message with images may hold {"type": "text", "text": "..."} and '
        '{"type": "image_url", "image_url": {"url": "data:..."}} parts'
    )
