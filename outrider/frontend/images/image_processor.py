"""The image processor of a model: from an image to pixels, and to the text that stands for it."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from outrider.config.install_hint import install_hint
from outrider.errors import ConfigError
from outrider.hub.vision_config import VisionConfig
from outrider.wire.image_span import ImagePixels

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class ProcessedImage:
    """The text that replaces a placeholder, and what its image tokens become, in order."""

    text: str
    tiles: tuple[ImagePixels, ...]


class ImageProcessor(Protocol):
    """Prepares one image at a time, without regard to others."""

    @property
    def placeholder(self) -> str:
        """What stands for one image in a prompt that a user or a chat template writes."""
        ...

    def process(self, image: Any) -> ProcessedImage:
        """An image of PIL, in RGB."""
        ...


def load_processor(folder: Path, vision: VisionConfig) -> ImageProcessor:
    """The processor of a folder, as transformers has it. Its scaling is left to the tower."""
    try:
        if vision.kind == "idefics3":
            from outrider.frontend.images.idefics3_processor import Idefics3Processor

            return Idefics3Processor.load(folder, vision)
        from outrider.frontend.images.qwen_vl_processor import QwenVLProcessor

        return QwenVLProcessor.load(folder)
    except ImportError as error:
        raise ConfigError(
            f"images need transformers and pillow ({error}): {install_hint('vision')}"
        ) from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"{folder}: its image processor cannot be loaded ({reason}); it needs the model's "
            "preprocessor_config.json"
        ) from error


def pixels_of(array: "np.ndarray", grid: tuple[int, int], *, has_axes: bool = False) -> ImagePixels:
    """One image or tile, with the digest that caches know it by."""
    values = array.astype("u1", copy=False).tobytes()
    digest = hashlib.sha256(repr((array.shape, grid)).encode() + b"\n" + values).digest()
    return ImagePixels(
        shape=array.shape, grid=grid, digest=digest, has_axes=has_axes, values=values
    )
