"""DeepSeek-V3, R1 and V3.1: calls between tags with a full-width bar and a lower block."""

from outrider.server.parsers.call_block import Call, CallFormat, parse_object


def _tag(words: str) -> str:
    return f"<\uff5c{words.replace(' ', chr(0x2581))}\uff5c>"


OPEN, CLOSE = _tag("tool calls begin"), _tag("tool calls end")
_BEGIN, _SEPARATOR, _END = _tag("tool call begin"), _tag("tool sep"), _tag("tool call end")


def _parse(block: str) -> list[Call] | None:
    calls = [_parse_call(part.partition(_END)[0]) for part in block.split(_BEGIN)[1:]]
    return [call for call in calls if call is not None] if calls and all(calls) else None


def _parse_call(text: str) -> Call | None:
    """V3 writes function, the name and a code block; V3.1 the name and the arguments."""
    head, _, rest = text.partition(_SEPARATOR)
    name, code = head.strip(), rest
    if name == "function":
        name, _, code = rest.partition("\n")
    json_text = code.strip().removeprefix("```json").removesuffix("```")
    arguments = parse_object(json_text)
    return None if arguments is None else (name.strip(), arguments)


DEEPSEEK = CallFormat(opens=(OPEN,), close=CLOSE, is_leading=False, parse=_parse)
