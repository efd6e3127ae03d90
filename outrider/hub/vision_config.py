"""Whether a model folder has a vision tower that is supported, and how prompts spell images."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from outrider.errors import ConfigError

VisionKind = Literal["none", "idefics3", "qwen2.5-vl"]

_KINDS: Mapping[str, VisionKind] = {
    "Idefics3ForConditionalGeneration": "idefics3",
    "SmolVLMForConditionalGeneration": "idefics3",
    "Qwen2_5_VLForConditionalGeneration": "qwen2.5-vl",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    """The vision part of a config.json, as far as prompts depend on it."""

    kind: VisionKind = "none"
    image_token: int = -1  # id of the token that stands where embeddings of images go
    grid: tuple[int, int] = (0, 0)  # rows and columns of embeddings per tile, if all are alike
    tile: int = 0  # edge of a tile in pixels, if all tiles are alike

    @property
    def reads_images(self) -> bool:
        return self.kind != "none"


NO_VISION = VisionConfig()


def read_vision(folder: Path) -> VisionConfig:
    """The vision part of a folder. A damaged config.json has none; the loader refuses it."""
    try:
        fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        architecture = str(fields["architectures"][0])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return NO_VISION
    kind = _KINDS.get(architecture, "none")
    if kind == "none":
        return NO_VISION
    try:
        return _parse(fields, kind)
    except (LookupError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ConfigError(
            f"{folder}: the vision part of config.json is damaged ({error!r}); download it again"
        ) from error


def _parse(fields: Mapping[str, Any], kind: VisionKind) -> VisionConfig:
    image_token = int(fields["image_token_id"])
    if kind == "qwen2.5-vl":
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
