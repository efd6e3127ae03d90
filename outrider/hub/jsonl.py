"""JSONL files: one JSON value per line."""

from collections.abc import Iterator
from pathlib import Path


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Every line that is not blank, with its number from 1.

    Only a line feed ends a line: JSON strings may contain other line separators such as U+2028.
    """
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if line.strip():
            yield number, line
