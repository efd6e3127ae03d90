"""A JSON file that is there completely or not at all."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace the file at once."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as folder:
        partial = Path(folder) / path.name
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        os.replace(partial, path)
