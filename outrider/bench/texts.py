"""Texts from a JSONL file: one prompt a line, other keys ignored."""

import json
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError
from outrider.hub.jsonl import numbered_lines


def read_texts(path: Path) -> list[str]:
    """The prompt of every line that is not blank."""
    try:
        numbered = list(numbered_lines(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path} ({error}); check --prompts") from error
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
