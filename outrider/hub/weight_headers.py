"""Names and shapes of stored tensors, from the headers of safetensors files alone."""

import json
from pathlib import Path
from typing import Any

_LENGTH_BYTES = 8  # of a header, little-endian, at the start of the file


def read_header(path: Path) -> dict[str, Any]:
    """What a file says of each of its tensors, by name. A damaged file has none."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(_LENGTH_BYTES), "little")))
        header.pop("__metadata__", None)
        return dict(header)
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
    except (OverflowError, MemoryError, RecursionError):  # a length or a nesting beyond any header
        return {}
