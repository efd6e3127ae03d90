"""Strict tools: once an answer opens a call, a grammar holds it to the schema of its function."""

from collections.abc import Sequence
from typing import Any

from outrider.frontend.structured_params import Structured
from outrider.server.parsers.hermes_calls import CLOSE, OPEN
from outrider.server.protocol.tools import FunctionTool, Tool

_NOTHING: dict[str, Any] = {"type": "object", "properties": {}}


def strict_calls(tools: Sequence[Tool]) -> Structured:
    """Free text in which every call of Hermes' format is valid; None if no tool is strict."""
    functions = [tool.function for tool in tools]
    if not any(function.strict for function in functions):
        return None
    tags = [_tag(function) for function in functions]
    calls = {"type": "triggered_tags", "triggers": [OPEN], "tags": tags}
    return {"structural_tag": {"type": "structural_tag", "format": calls}}


def _tag(function: FunctionTool) -> dict[str, Any]:
    schema = (function.parameters or _NOTHING) if function.strict else {"type": "object"}
    return {
        "type": "tag",
        "begin": f'{OPEN}\n{{"name": "{function.name}", "arguments": ',
        "content": {"type": "json_schema", "json_schema": schema},
        "end": f"}}\n{CLOSE}",
    }
