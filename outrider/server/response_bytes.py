"""How answers become bytes: JSON bodies and server-sent events."""

from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"  # a comment, which clients skip


def json_response(answer: BaseModel) -> Response:
    """A JSON body with the fields that were set, null included. Other fields are left out."""
    return Response(answer.model_dump_json(exclude_unset=True), media_type="application/json")


def set_only(**values: Any) -> dict[str, Any]:
    """The values that are not None: a field that is set to None would be sent as null."""
    return {name: value for name, value in values.items() if value is not None}


def event(data: str) -> bytes:
    """One server-sent event with this data, which must have no line breaks."""
    return b"data: " + data.encode() + b"\n\n"


def named_event(name: str, data: str) -> bytes:
    return b"event: " + name.encode() + b"\n" + event(data)
