"""Mistral: [TOOL_CALLS][{"name": ..., "arguments": {...}}], or in newer models
[TOOL_CALLS]name[ARGS]{...} once per call."""

from outrider.server.parsers.call_block import (
    Call,
    CallFormat,
    json_calls,
    parse_json,
    parse_object,
)

_TAG, _ARGS = "[TOOL_CALLS]", "[ARGS]"


def _parse(block: str) -> list[Call] | None:
    body = block.removeprefix(_TAG).strip()
    if body.startswith("["):
        values = parse_json(body)
        return json_calls(values, "arguments") if isinstance(values, list) else None
    calls = [_newer_call(part) for part in block.split(_TAG)[1:]]
    return [call for call in calls if call is not None] if all(calls) else None


def _newer_call(part: str) -> Call | None:
    begin = part.find("{")
    arguments = parse_object(part[begin:]) if begin >= 0 else None
    name = part[:begin].strip().removesuffix(_ARGS)
    return None if arguments is None else (name, arguments)


MISTRAL = CallFormat(opens=(_TAG,), close="", is_leading=False, parse=_parse)
