"""Llama 3: the answer is {"name": ..., "parameters": {...}}, or several of these with ; between."""

import json
from typing import Any

from outrider.server.parsers.call_block import Call, CallFormat, json_calls, parse_json

_TAG = "<|python_tag|>"


def _parse(block: str) -> list[Call] | None:
    values, rest = [], block.removeprefix(_TAG).strip()
    while rest:
        value, rest = _first_value(rest)
        if value is None:
            return None
        values.append(value)
    return json_calls(values, "parameters", "arguments")


def _first_value(text: str) -> tuple[Any, str]:
    """The JSON value at the begin of a text, and what follows it."""
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None, ""
    return parse_json(text[:end]), text[end:].lstrip("; \n\t")


LLAMA3 = CallFormat(opens=(_TAG, "{"), close="", is_leading=True, parse=_parse)
