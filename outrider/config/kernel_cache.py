"""Whether kernels that numba compiles can be stored for the next start."""

import importlib.util
import os
from pathlib import Path


def _is_writable(folder: Path) -> bool:
    """Whether the folder, or the nearest one above it that exists, can be written to."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK)


def _places() -> tuple[Path, ...]:
    """The folders that numba tries: the user's choice alone, or beside the code, then at home."""
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        return (Path(chosen),)
    package = importlib.util.find_spec("outrider")
    origin = package.origin if package is not None else None
    return Path(origin or ".").parent / "ops", Path.home() / ".cache" / "numba"


HAS_CACHE = any(_is_writable(folder) for folder in _places())  # numba fails where it has no folder
