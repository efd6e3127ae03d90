"""The folder of the cache. Only this module reads these environment variables."""

import os
from pathlib import Path

# Part of the path, so that a newer converter does not use folders that an older one wrote.
_CONVERTER_VERSION = 1


def cache_folder() -> Path:
    """$OUTRIDER_CACHE, else outrider under $XDG_CACHE_HOME, else ~/.cache/outrider."""
    if chosen := os.environ.get("OUTRIDER_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "outrider"


def converted_folder() -> Path:
    """The folder that holds one subfolder per converted model."""
    return cache_folder() / f"converted-{_CONVERTER_VERSION}"


def kernel_root() -> Path:
    """Where compiled CPU kernels are stored: $NUMBA_CACHE_DIR, else the folder of the cache."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    return Path(chosen) if chosen else cache_folder()
