"""Whether a model folder has a vision tower that is supported, and how prompts spell images."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from outrider.config.install_hint import install_hint
from outrider.errors import ConfigError

_PROCESSOR = "preprocessor_config.json"
_WHOLE_PROCESSOR = "processor_config.json"  # transformers 5 saves the former as a part of this

VisionKind = Literal["none", "idefics3", "qwen2.5-vl", "qwen3-vl", "qwen3.5"]

_KINDS: Mapping[str, VisionKind] = {
    "Idefics3ForConditionalGeneration": "idefics3",
    "SmolVLMForConditionalGeneration": "idefics3",
    "Qwen2_5_VLForConditionalGeneration": "qwen2.5-vl",
    "Qwen3VLForConditionalGeneration": "qwen3-vl",
    "Qwen3VLMoeForConditionalGeneration": "qwen3-vl",
    "Qwen3_5ForConditionalGeneration": "qwen3.5",
    "Qwen3_5MoeForConditionalGeneration": "qwen3.5",
}
# Models with a tower that is not supported, and why: they are loaded as text models.
_TEXT_PARTS: Mapping[str, str] = {
    "Gemma3ForConditionalGeneration": "tokens of an image of Gemma-3 see each other both ways, and "
    "attention here is causal",
    "Llama4ForConditionalGeneration": "the vision tower of Llama-4 is not supported",
    "Mistral3ForConditionalGeneration": "the vision tower of Mistral-3 is not supported",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    """The vision part of a config.json, as far as prompts depend on it."""

    kind: VisionKind = "none"
    image_token: int = -1  # id of the token that stands where embeddings of images go
    grid: tuple[int, int] = (0, 0)  # rows and columns of embeddings per tile, if all are alike
    tile: int = 0  # edge of a tile in pixels, if all tiles are alike
    missing: str = ""  # what to do so that images are read, where a model could

    @property
    def reads_images(self) -> bool:
        return self.kind != "none"


NO_VISION = VisionConfig()
TEXT_BY_CHOICE = VisionConfig(missing="raise --limit-mm-per-prompt image=1")


def read_vision(folder: Path) -> VisionConfig:
    """The vision part of a folder. A damaged config.json has none; the loader refuses it."""
    try:
        fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        architecture = str(fields["architectures"][0])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return NO_VISION
    if reason := _TEXT_PARTS.get(architecture):
        return VisionConfig(missing=f"load another model for images (docs/images.md): {reason}")
    kind = _KINDS.get(architecture, "none")
    if kind == "none":
        return NO_VISION
    if kind == "qwen3.5" and (missing := _missing(folder)):
        return VisionConfig(missing=missing)
    try:
        return _parse(fields, kind)
    except (LookupError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ConfigError(
            f"{folder}: the vision part of config.json is damaged ({error!r}); download it again"
        ) from error


def _missing(folder: Path) -> str:
    """What is not there to read images with. Many users of Qwen3.5 have texts alone."""
    if not _has_processor(folder):
        return f"add its {_PROCESSOR} to the folder"
    if any(find_spec(name) is None for name in ("transformers", "PIL")):
        return f"install transformers and pillow: {install_hint('vision')}"
    return ""


def _has_processor(folder: Path) -> bool:
    if (folder / _PROCESSOR).is_file():
        return True
    try:
        return "image_processor" in json.loads((folder / _WHOLE_PROCESSOR).read_text())
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def _parse(fields: Mapping[str, Any], kind: VisionKind) -> VisionConfig:
    image_token = int(fields["image_token_id"])
    if kind != "idefics3":
        return VisionConfig(kind=kind, image_token=image_token)
    vision, scale = fields["vision_config"], int(fields.get("scale_factor", 2))
    tile, patch = int(vision["image_size"]), int(vision["patch_size"])
    patches = tile // patch  # pixels behind the last whole patch are not read
    edge = patches // scale
    if edge < 1 or edge * scale != patches:
        raise ValueError(f"image_size {tile}, patch_size {patch}, scale_factor {scale}")
    return VisionConfig(
        kind=kind,
        image_token=image_token,
        grid=(edge, edge),
        tile=tile,
    )
