"""What a long run has measured so far, on disk: one that is cut off keeps its parts."""

from pathlib import Path
from typing import Any

from outrider.hub.atomic_json import write_json


class PartsFile:
    """Owns the content of a JSON file, which is written anew with every part."""

    def __init__(self, path: Path | None, facts: dict[str, Any]) -> None:
        self._path = path
        self._content: dict[str, Any] = {"facts": facts}

    def add(self, name: str, part: Any) -> None:
        self._content[name] = part
        if self._path is not None:
            write_json(self._path, self._content)
