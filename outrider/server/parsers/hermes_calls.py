"""Hermes and Qwen: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number of them."""

from outrider.server.parsers.call_block import Call, CallFormat, json_calls, parse_json

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def _parse(block: str) -> list[Call] | None:
    value = parse_json(block.removeprefix(OPEN).removesuffix(CLOSE))
    is_plain = isinstance(value, dict) and value.keys() <= {"name", "arguments"}
    return json_calls([value], "arguments") if is_plain else None


HERMES = CallFormat(opens=(OPEN,), close=CLOSE, is_leading=False, has_strings=True, parse=_parse)
