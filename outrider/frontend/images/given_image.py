"""Images as users give them: encoded bytes, or an image of PIL. Decoding is bounded."""

import base64
import binascii
import io
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from outrider.config.install_hint import install_hint
from outrider.errors import RequestError
from outrider.frontend.images.image_limits import MAX_BYTES, MAX_PIXELS, ImageLimits
from outrider.frontend.images.remote_image import RemoteImage, check_address, fetch_image

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_TYPES = "a PNG, JPEG, WebP, GIF or BMP"

# Images that are decoded and resized at a time: one may take hundreds of megabytes meanwhile.
decoding = threading.BoundedSemaphore(2)


@dataclass(frozen=True, slots=True)
class GivenImage:
    """One image. Its bytes are not decoded yet."""

    # Bytes of a file, the path of one that may be read, a `RemoteImage`, or an image of PIL
    content: Any

    @property
    def is_remote(self) -> bool:
        """Whether it is downloaded when it is opened."""
        return isinstance(self.content, RemoteImage)


def fetched(given: GivenImage) -> GivenImage:
    """The image with its bytes, if they are elsewhere. This can take seconds."""
    return GivenImage(fetch_image(given.content)) if given.is_remote else given


def image_at(url: object, limits: ImageLimits) -> GivenImage:
    """The image at a `data:` URL, or in a file or at a host that is allowed. Not opened yet."""
    if not isinstance(url, str):
        raise RequestError('an image_url must be {"url": "data:image/png;base64,..."}')
    scheme = url[:16].partition(":")[0].lower()
    if scheme == "data":
        return GivenImage(_decoded(url))
    if scheme == "file":
        return GivenImage(_allowed_file(url, limits))
    if scheme in ("http", "https") and limits.allowed_domains:
        check_address(url, limits.allowed_domains)
        return GivenImage(RemoteImage(url, limits.allowed_domains))
    raise RequestError(
        "images are not downloaded; send the image itself as a data: URL "
        "(data:image/png;base64,...)"
    )


def _allowed_file(url: str, limits: ImageLimits) -> Path:
    try:
        return limits.allowed_file(Path(unquote(urlsplit(url).path)))
    except (ValueError, OSError) as error:  # no address, no path, or a loop of links
        raise RequestError(
            f"a file: URL cannot be read ({error}); use file:///folder/a.png"
        ) from error


def image_of(given: object) -> GivenImage:
    """An image of PIL, checked by its size."""
    image = _pillow().Image
    if not isinstance(given, image.Image):
        raise RequestError(
            "an image must be a data: URL, or one of PIL (PIL.Image.open), got a "
            f"{type(given).__name__}"
        )
    _check_pixels(given.size)
    return GivenImage(given)


def open_image(given: GivenImage) -> Any:
    """The image in RGB, upright; transparent parts are white. Of an animation, the first frame."""
    pillow, content = _pillow(), given.content
    if isinstance(content, Path):
        content = _file_bytes(content)
    if not isinstance(content, bytes):
        return _rgb(content, pillow)
    try:
        with pillow.Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            _check_pixels(image.size)  # before the pixels are decoded
            return _rgb(pillow.ImageOps.exif_transpose(image), pillow)
    except RequestError:
        raise
    except pillow.UnidentifiedImageError as error:  # its text has an address of this process
        raise RequestError(f"an image cannot be read; send {_TYPES}") from error
    except Exception as error:  # decoders raise anything about bytes that are not what they seem
        raise RequestError(f"an image cannot be read ({error}); send {_TYPES}") from error


def _rgb(image: Any, pillow: Any) -> Any:
    if image.mode.startswith("I;16"):
        image = _eight_bits(image)
    if "A" not in image.getbands() and "transparency" not in image.info:
        return image.convert("RGB")
    layers = image.convert("RGBA")
    white = pillow.Image.new("RGBA", layers.size, (255, 255, 255, 255))
    return pillow.Image.alpha_composite(white, layers).convert("RGB")


def _eight_bits(image: Any) -> Any:
    """Greys of 16 bits as greys of 8. PIL alone would clip what is above 255, so all is white."""
    grey = image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    grey.info.pop("transparency", None)  # one grey of 16 bits, which many greys share now
    return grey


def _check_pixels(size: tuple[int, int]) -> None:
    if not 0 < size[0] * size[1] <= MAX_PIXELS:
        raise RequestError(
            f"an image has {size[0]} x {size[1]} pixels and {MAX_PIXELS} are allowed; resize it"
        )


def _decoded(url: str) -> bytes:
    """The bytes of a `data:` URL."""
    header, comma, body = url.partition(",")
    if not comma or not header.lower().endswith(";base64"):
        raise RequestError("a data: URL of an image is data:image/png;base64, and then base64")
    if len(body) > MAX_BYTES * 4 // 3 + 4:
        raise _too_long()
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"the data: URL of an image is no base64 ({error})") from error


def _file_bytes(path: Path) -> bytes:
    try:
        if not path.is_file():  # nor a pipe, which would be waited for
            raise RequestError("an image file is not there, or is no file; fix the file: URL")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:  # such as a name that is too long, or a folder without permission
        raise RequestError(f"an image file cannot be read ({error.strerror})") from error
    if len(content) > MAX_BYTES:
        raise _too_long()
    return content


def _too_long() -> RequestError:
    return RequestError(f"an image may have {MAX_BYTES >> 20} MiB; compress or resize it")


def _pillow() -> Any:
    try:
        import PIL.Image
        import PIL.ImageOps
    except ImportError as error:
        raise RequestError(f"images need pillow: {install_hint('vision')}") from error
    return PIL
