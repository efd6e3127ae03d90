"""Whether a model folder holds a drafter that is used unless another one is named."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.hub.weight_headers import read_header

_PREFIXES = ("mtp.", "model.mtp.")  # of its tensors


def has_dspark(fields: Mapping[str, Any]) -> bool:
    """Whether a config.json describes a DSpark drafter inside a DeepSeek-V4 model.

    Published files also count one MTP module, which the folder does not have.
    """
    return fields.get("dspark_block_size") is not None


def holds_drafter(folder: Path) -> bool:
    """Whether a model has a drafter of blocks in its own folder, and not only in its config.json:
    converted folders often drop it.

    A file that cannot be read is reported when the model is loaded.
    """
    try:
        fields = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(fields, dict) or not has_dspark(fields):
        return False
    files = folder.glob("*.safetensors")
    return any(name.startswith(_PREFIXES) for path in files for name in read_header(path))
