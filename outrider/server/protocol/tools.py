"""The tools of a request, tool calls of an answer, and the JSON schema of a forced call."""

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from outrider.errors import RequestError
from outrider.frontend.schema_support import loosened
from outrider.server.protocol.tool_call_parser import CallPart

MAX_TOOLS = 128  # OpenAI's bound

Name = Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]

# A schema with one of these keys needs no added type.
_SAYS_ITSELF = frozenset({"type", "$ref", "anyOf", "oneOf", "allOf"})


class FunctionTool(BaseModel):
    """A function as the model sees it. One without `parameters` takes no arguments."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None  # calls in Hermes' format follow the schema


class Tool(BaseModel):
    """OpenAI's envelope of a function."""

    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["function"]
    function: FunctionTool


class ChosenName(BaseModel):
    """The name of the function that must be called."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: str


class ChosenTool(BaseModel):
    """The choice of one function."""

    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["function"]
    function: ChosenName


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]
ToolChoice = Literal["none", "auto", "required"] | ChosenTool


class CalledFunction(BaseModel):
    """The called function; its arguments are JSON in a string."""

    name: str
    arguments: str


class ToolCall(BaseModel):
    """One tool call of an answer."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class FunctionDelta(BaseModel):
    """The new part of a call; the first delta has the name."""

    name: str | None = None
    arguments: str


class ToolCallDelta(BaseModel):
    """A part of one tool call in a stream; the first has the id and the type."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


def new_call(call: CallPart) -> ToolCall:
    """A complete call with a new id."""
    function = CalledFunction(name=call.name, arguments=call.arguments)
    return ToolCall(id=new_id(), type="function", function=function)


def call_delta(part: CallPart) -> ToolCallDelta:
    """A part of a call; the first has the name and gets the id."""
    if not part.name:
        return ToolCallDelta(index=part.index, function=FunctionDelta(arguments=part.arguments))
    function = FunctionDelta(name=part.name, arguments=part.arguments)
    return ToolCallDelta(index=part.index, id=new_id(), type="function", function=function)


def new_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def check_tools(tools: Sequence[Tool], choice: ToolChoice | None) -> None:
    """Refuse equal names, parameters that are no object, and a choice of an unknown tool."""
    names = [tool.function.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise RequestError(f"tools has two functions named {name!r}; rename one")
    for tool in tools:
        if (tool.function.parameters or {}).get("type", "object") != "object":
            raise RequestError(
                f"the parameters of {tool.function.name!r} must be a schema of type object"
            )
    if isinstance(choice, ChosenTool) and choice.function.name not in names:
        raise RequestError(f"tool_choice names {choice.function.name!r}, which is not in tools")
    if choice == "required" and not names:
        raise RequestError("tool_choice required needs tools")


def call_schema(tools: Sequence[Tool], choice: ToolChoice | None) -> dict[str, Any]:
    """The JSON schema of one call of any function that may be chosen."""
    chosen = choice.function.name if isinstance(choice, ChosenTool) else None
    functions = [tool.function for tool in tools if chosen in (None, tool.function.name)]
    return {
        "anyOf": [_one_call(function.name) for function in functions],
        "$defs": {function.name: _arguments(function) for function in functions},
    }


def _one_call(name: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": {"$ref": f"#/$defs/{name}"}},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _arguments(function: FunctionTool) -> dict[str, Any]:
    """The schema of the arguments, moved to `#/$defs/<name>`."""
    schema = function.parameters or {"properties": {}}
    if not function.strict:  # the tools of many programs have rules that no grammar can follow
        schema = loosened(schema)
    moved: dict[str, Any] = _moved(schema, f"#/$defs/{function.name}")
    return moved if _SAYS_ITSELF & set(moved) else {"type": "object", **moved}


def _moved(value: Any, root: str) -> Any:
    """A part of a schema, with its references changed to begin at another root."""
    if isinstance(value, list):
        return [_moved(each, root) for each in value]
    if not isinstance(value, Mapping):
        return value
    return {
        key: _moved_reference(each, root)
        if key == "$ref" and isinstance(each, str)
        else _moved(each, root)
        for key, each in value.items()
    }


def _moved_reference(reference: str, root: str) -> str:
    return root + reference[1:] if reference.startswith("#") else reference


def decode_calls(turn: dict[str, Any]) -> dict[str, Any]:
    """The message with the arguments of its calls as objects: templates write JSON themselves."""
    calls = turn.get("tool_calls")
    if not isinstance(calls, list):
        return turn
    return {**turn, "tool_calls": [_decode_call(call) for call in calls]}


def _decode_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):  # a call that was cut: the model sees the text as it was
        return call
    return {**call, "function": {**function, "arguments": arguments}}
