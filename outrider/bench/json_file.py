"""The file of --json: whether it can be written."""

import os
from pathlib import Path

from outrider.errors import ConfigError


def check_target(path: Path) -> None:
    """Refuse a file that could not be written, before minutes are spent on its content."""
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(f"cannot write {path}; give --json a file in a folder you may write to")
