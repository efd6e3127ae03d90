"""Images of other APIs as parts of a chat message. Whether they can be read is decided later."""

from collections.abc import Callable, Sequence
from typing import Any

from outrider.errors import RequestError

Json = dict[str, Any]
_SCHEMES = ("data", "http", "https", "file")


def image_part(url: object) -> Json:
    """OpenAI's part for an image at a URL."""
    return {"type": "image_url", "image_url": {"url": url}}


def image_url(given: object) -> str:
    """The URL of an image as SGLang takes it: a URL, {"url": ...}, or base64 of its bytes."""
    url = given.get("url") if isinstance(given, dict) else given
    if not isinstance(url, str):
        raise RequestError('an image of image_data is a URL, {"url": ...}, or base64')
    is_url = url[:16].partition(":")[0].lower() in _SCHEMES
    return url if is_url else f"data:image/png;base64,{url}"


def base64_part(data: object, media_type: object = "image/png") -> Json:
    """An image whose encoded bytes are base64."""
    if not isinstance(data, str) or not isinstance(media_type, str):
        raise RequestError(
            'an image is its bytes in base64, as a text, and a media_type such as "image/png"'
        )
    return image_part(f"data:{media_type};base64,{data}")


def mixed_content(
    parts: Sequence[Json], *, images: dict[str, Callable[[Json], Json]], text: Callable[[Any], str]
) -> str | list[Json]:
    """The content of a message: its text, or its parts in order if some of them are images.

    `images` makes a part of each type of image, `text` the text of a list of other parts.
    """
    if not any(_kind(part) in images for part in parts):
        return text(parts)
    return [
        images[_kind(part)](part)
        if _kind(part) in images
        else {"type": "text", "text": text([part])}
        for part in parts
    ]


def _kind(part: Json) -> str:
    """Its type. Clients may send anything there, such as a list."""
    kind = part.get("type")
    return kind if isinstance(kind, str) else ""
