"""A JSON file that is there completely or not at all."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError


def check_target(path: Path) -> None:
    """Refuse a file that could not be written, before minutes are spent on its content."""
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(f"cannot write {path}; give --json a file in a folder you may write to")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace the file at once."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as folder:
        partial = Path(folder) / path.name
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        os.replace(partial, path)
