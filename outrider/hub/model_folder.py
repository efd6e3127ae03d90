"""Which files a Hugging Face model folder must have."""

import json
from pathlib import Path

from outrider.errors import ConfigError

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def missing_files(folder: Path) -> tuple[str, ...]:
    """The files a model folder lacks; empty when it is complete."""
    needed = ("config.json", *_weight_files(folder))
    return tuple(name for name in needed if not (folder / name).is_file())


def checked_folder(folder: Path) -> Path:
    """The folder itself. Refuses a folder without a config or with missing weights."""
    if missing := missing_files(folder):
        raise ConfigError(
            f"the model folder {folder} lacks {missing[0]}; "
            "pass a complete Hugging Face folder with safetensors weights"
        )
    return folder


def _weight_files(folder: Path) -> tuple[str, ...]:
    if not (folder / _INDEX).is_file():
        return (_WEIGHTS,)
    try:
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        return tuple(sorted(set(index["weight_map"].values())))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ConfigError(f"{folder / _INDEX} is damaged; download the model again") from error
