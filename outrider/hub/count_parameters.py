"""How many numbers the weights of a model folder are, from the headers of its files alone."""

import math
from pathlib import Path

from outrider.hub.weight_headers import read_header


def count_parameters(folder: Path) -> int:
    """The numbers in all safetensors files of a folder; those of damaged files are not counted."""
    return sum(_count_in(path) for path in folder.glob("*.safetensors"))


def _count_in(path: Path) -> int:
    try:
        return sum(math.prod(tensor["shape"]) for tensor in read_header(path).values())
    except (KeyError, TypeError):
        return 0
