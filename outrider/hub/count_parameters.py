"""How many numbers the weights of a model folder are, from the headers of its files alone."""

import json
import math
from pathlib import Path

_LENGTH_BYTES = 8  # of a safetensors header, little-endian, at the start of the file


def count_parameters(folder: Path) -> int:
    """The numbers in all safetensors files of a folder; those of damaged files are not counted."""
    return sum(_count_in(path) for path in folder.glob("*.safetensors"))


def _count_in(path: Path) -> int:
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(_LENGTH_BYTES), "little")))
        header.pop("__metadata__", None)
        return sum(math.prod(tensor["shape"]) for tensor in header.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, MemoryError):
        return 0
