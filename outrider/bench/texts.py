"""Texts from a JSONL file: one prompt a line, other keys ignored."""

import json
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError


def read_texts(path: Path) -> list[str]:
    """The prompt of every line that is not blank."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path} ({error}); check --prompts") from error
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise ConfigError(f"{path} has no prompts; write one JSON object with a prompt per line")
    return [_text_of(line, f"{path} line {number}") for number, line in numbered]


def _text_of(line: str, place: str) -> str:
    try:
        value: Any = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{place} is not JSON ({error}); fix the line") from error
    text = value.get("prompt") if isinstance(value, dict) else value
    if not isinstance(text, str) or not text:
        raise ConfigError(f'{place} has no prompt; write {{"prompt": "..."}}')
    return text
