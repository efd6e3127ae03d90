"""GLM-4.5 and later: <tool_call>name, then <arg_key>k</arg_key><arg_value>v</arg_value> pairs."""

import re

from outrider.server.parsers.call_block import Call, CallFormat, parse_json, written

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_PAIR = re.compile(r"<arg_key>([^<]*)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_NAME = re.compile(r"\s*([^\s<]+)\s*(?:<arg_key>|$)")


def _parse(block: str) -> list[Call] | None:
    body = block.removeprefix(_OPEN).removesuffix(_CLOSE)
    name = _NAME.match(body)
    if name is None:
        return None
    arguments = {key.strip(): _value(text) for key, text in _PAIR.findall(body)}
    return [(name[1], written(arguments))]


def _value(text: str) -> object:
    """A JSON value; anything else is a text."""
    value = parse_json(text.strip())
    return text if value is None and text.strip() != "null" else value


GLM = CallFormat(opens=(_OPEN,), close=_CLOSE, is_leading=False, parse=_parse)
