"""Which images a prompt may have."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError, RequestError

MAX_BYTES = 20 << 20  # of one encoded image
MAX_PIXELS = 50_000_000  # of one image before it is resized; decoding holds a few copies of it


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLimits:
    """Limits of one prompt, and what its addresses may name."""

    per_prompt: int = 16
    allowed_path: str = ""  # folder of `file:` addresses; empty: no files are read
    allowed_domains: tuple[str, ...] = ()  # hosts of web addresses; none: nothing is downloaded

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


def parse_limits(
    per_prompt: object, allowed_path: str, allowed_domains: str | Sequence[str] = ()
) -> ImageLimits:
    """Limits in vLLM's words: `image=2`, JSON or a mapping; a folder; a list of hosts."""
    counts = _counts(per_prompt)
    unknown = sorted(counts.keys() - {"image", "video", "audio"})
    if unknown:
        raise ConfigError(f"--limit-mm-per-prompt knows image, not {unknown[0]}; use image=2")
    most = counts.get("image", DEFAULT_LIMITS.per_prompt)
    if isinstance(most, bool) or not isinstance(most, int) or most < 0:
        raise ConfigError(f"--limit-mm-per-prompt needs a number of images, got {most!r}")
    if allowed_path and not Path(allowed_path).is_dir():
        raise ConfigError(f"--allowed-local-media-path {allowed_path} is no folder")
    return ImageLimits(
        per_prompt=most, allowed_path=allowed_path, allowed_domains=_domains(allowed_domains)
    )


def _domains(given: str | Sequence[str]) -> tuple[str, ...]:
    names = given.split(",") if isinstance(given, str) else given
    found = tuple(name.strip().lower() for name in names if name.strip())
    for name in found:
        if any(sign in name for sign in "/@*"):
            raise ConfigError(
                f"--allowed-media-domains needs names of hosts (images.example.com), got {name!r}"
            )
    return found


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
