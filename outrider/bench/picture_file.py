"""Checks of --plot that come before anything is measured."""

import importlib.util
import os
from pathlib import Path

from outrider.config.install_hint import install_hint
from outrider.errors import ConfigError


def check_picture(path: Path) -> None:
    """Refuse a picture that could not be drawn, before the run."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(f"no --plot without matplotlib; {install_hint('bench')}")
    if path.suffix.lower() != ".png":
        raise ConfigError(f"--plot writes PNG; call the file {path.with_suffix('.png')}")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(f"cannot write {path}; give --plot a file in a folder you may write to")
