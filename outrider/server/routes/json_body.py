"""How answers become JSON: what was set is sent, null included; what was not is left out."""

from typing import Any

from pydantic import BaseModel
from starlette.responses import Response


def json_response(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(exclude_unset=True), media_type="application/json")


def set_only(**values: Any) -> dict[str, Any]:
    """The values that there are: a field given as None would be sent as null."""
    return {name: value for name, value in values.items() if value is not None}
