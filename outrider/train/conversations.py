"""Conversations for the target to answer: the user turns of a JSONL file, without its answers."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError
from outrider.hub.jsonl import numbered_lines

MIN_PROMPTS = 8  # with fewer, nothing is left to train on once some are held out

_SHAPES = 'write "prompt", "turns", "messages" or "prompt_token_ids"'


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConversation:
    """The user's side of a conversation. A model without a tokenizer gets `tokens`, not turns."""

    id: str
    source: str
    system: str
    turns: tuple[str, ...]
    tokens: tuple[int, ...]


def read_conversations(path: Path) -> list[TrainingConversation]:
    """One conversation for every line that is not blank."""
    try:
        numbered = list(numbered_lines(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path} ({error}); check --prompts") from error
    conversations = [_parse_line(line, f"{path} line {number}") for number, line in numbered]
    if len(conversations) < MIN_PROMPTS:
        raise ConfigError(
            f"{path} has {len(conversations)} prompts; training needs at least {MIN_PROMPTS}"
        )
    ids = {each.id for each in conversations}
    if len(ids) < len(conversations):
        raise ConfigError(
            f"{path} gives {len(conversations) - len(ids)} ids twice; make them unique"
        )
    return conversations


def _parse_line(line: str, place: str) -> TrainingConversation:
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place} is not JSON ({error}); fix the line") from error
    fields = value if isinstance(value, dict) else {"prompt": value}
    tokens = _tokens(fields.get("prompt_token_ids", []), place)
    system, turns = ("", ()) if tokens else _turns(fields, place)
    return TrainingConversation(
        id=str(fields.get("id", place.rpartition(" ")[2])),
        source=str(fields.get("source", "file")),
        system=system,
        turns=turns,
        tokens=tokens,
    )


def _tokens(value: object, place: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        raise ConfigError(f"{place} needs integers in prompt_token_ids; fix the line")
    return tuple(value)


def _turns(fields: Mapping[str, Any], place: str) -> tuple[str, tuple[str, ...]]:
    """The system message and the user's turns, from any of the accepted forms."""
    messages = fields.get("messages", [])
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise ConfigError(f"{place} needs a list of objects in messages; fix the line")
    from_messages = [each.get("content") for each in messages if each.get("role") == "user"]
    system = [each.get("content") for each in messages if each.get("role") == "system"]
    turns = from_messages or fields.get("turns", fields.get("prompt"))
    turns = [turns] if isinstance(turns, str) else turns
    is_text = isinstance(turns, list) and all(isinstance(turn, str) and turn for turn in turns)
    if not is_text or not turns:
        raise ConfigError(f"{place} has no prompt; {_SHAPES}")
    return str(system[0]) if system else "", tuple(turns)
