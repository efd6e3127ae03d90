"""Which images a prompt may have."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError, RequestError

MAX_BYTES = 20 << 20  # of one encoded image
MAX_PIXELS = 50_000_000  # of one image before it is resized; decoding holds a few copies of it


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLimits:
    """Limits of one prompt, and the folder that `file:` addresses may be in."""

    per_prompt: int = 16
    allowed_path: str = ""  # empty: no files are read

    def check_count(self, count: int) -> None:
        if count > self.per_prompt:
            raise RequestError(
                f"the prompt has {count} images and {self.per_prompt} are allowed; send fewer, or "
                f"raise --limit-mm-per-prompt image={count}"
            )

    def allowed_file(self, path: Path) -> Path:
        """The file itself. Links and dots are followed before the folder is compared."""
        if not self.allowed_path:
            raise RequestError(
                "files are read only with --allowed-local-media-path FOLDER; send the image as a "
                "data: URL"
            )
        found, folder = path.resolve(), Path(self.allowed_path).resolve()
        if not found.is_relative_to(folder):
            raise RequestError(
                "the file is outside of --allowed-local-media-path; move it there, or send the "
                "image as a data: URL"
            )
        return found


DEFAULT_LIMITS = ImageLimits()


def parse_limits(per_prompt: object, allowed_path: str) -> ImageLimits:
    """Limits in vLLM's words: `image=2`, JSON or a mapping; and a folder."""
    counts = _counts(per_prompt)
    unknown = sorted(counts.keys() - {"image", "video", "audio"})
    if unknown:
        raise ConfigError(f"--limit-mm-per-prompt knows image, not {unknown[0]}; use image=2")
    most = counts.get("image", DEFAULT_LIMITS.per_prompt)
    if isinstance(most, bool) or not isinstance(most, int) or most < 0:
        raise ConfigError(f"--limit-mm-per-prompt needs a number of images, got {most!r}")
    if allowed_path and not Path(allowed_path).is_dir():
        raise ConfigError(f"--allowed-local-media-path {allowed_path} is no folder")
    return ImageLimits(per_prompt=most, allowed_path=allowed_path)


def _counts(given: object) -> Mapping[str, Any]:
    if isinstance(given, Mapping):
        return given
    text = str(given or "{}").strip()
    try:
        if not text.startswith("{"):  # vLLM's older form
            pairs = (part.split("=") for part in text.split(","))
            return {name.strip(): int(count) for name, count in pairs}
        counts = json.loads(text)
        if isinstance(counts, dict):
            return counts
    except (ValueError, RecursionError):
        pass
    raise ConfigError(f'--limit-mm-per-prompt must be image=2 or {{"image": 2}}, got {given!r}')
