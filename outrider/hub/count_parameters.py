"""How many numbers the weights of a model folder are, from the headers of its files alone."""

import math
from pathlib import Path

from outrider.hub.block_file import BLOCK_KINDS, BLOCKS_FILE, split_name
from outrider.hub.weight_headers import read_header


def count_parameters(folder: Path) -> int:
    """The numbers in all files of a folder; those of damaged files are not counted.

    Weights of a converted GGUF file that are stored as floats and as blocks count once.
    """
    numbers: dict[str, int] = {}
    for name, shape in _shapes_in(folder / BLOCKS_FILE).items():
        weight, kind = split_name(name)
        size, num_bytes = BLOCK_KINDS.get(kind, (0, 1))
        numbers[weight] = math.prod(shape) // num_bytes * size
    for path in folder.glob("*.safetensors"):
        numbers |= {name: math.prod(shape) for name, shape in _shapes_in(path).items()}
    return sum(numbers.values())


def _shapes_in(path: Path) -> dict[str, list[int]]:
    """The shapes of the tensors of a file, by name."""
    try:
        header = read_header(path)
        return {name: [int(size) for size in header[name]["shape"]] for name in header}
    except (KeyError, TypeError, ValueError):
        return {}
