"""Routes by which an operator acts on a server, with the names of vLLM and SGLang."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from outrider.errors import RequestError
from outrider.server.async_engine import AsyncEngine
from outrider.server.json_body import JsonRoute
from outrider.server.protocol.neutral_fields import RequestBody
from outrider.server.same_origin import refuse_other_sites
from outrider.wire.sleep_level import parse_level, parse_mode, parse_tags


class AbortRequest(RequestBody):
    """Which requests to end: those of a name that the client gave, or of an answer's id."""

    rid: str | None = None
    request_id: str | None = None
    abort_all: bool | None = None
    abort_message: str | None = None  # without effect


def control_routes(async_engine: AsyncEngine) -> APIRouter:
    router = APIRouter(tags=["Operation"], route_class=JsonRoute)
    operators = [Depends(refuse_other_sites)]

    @router.get("/ping")
    @router.post("/ping")
    async def ping() -> Response:
        """As `/health`, for platforms that ask here."""
        async_engine.check_health()
        return Response(status_code=200)

    @router.post("/reset_prefix_cache", dependencies=operators)
    async def reset_prefix_cache() -> Response:
        """Empty the prefix cache, except for prefixes in use."""
        await async_engine.flush()
        return Response(status_code=200)

    @router.post("/sleep", dependencies=operators)
    async def sleep(level: int = 1, mode: str = "abort") -> Response:
        """Give memory back until `/wake_up`; requests that come meanwhile wait."""
        await async_engine.sleep(parse_level(level), parse_mode(mode))
        return Response(status_code=200)

    @router.post("/wake_up", dependencies=operators)
    async def wake_up(tags: Annotated[list[str], Query()] = []) -> Response:  # noqa: B006
        """Bring back the weights and an empty KV cache, or what the tags name of them."""
        await async_engine.wake_up(parse_tags(tags))
        return Response(status_code=200)

    @router.get("/is_sleeping")
    async def is_sleeping() -> dict[str, bool]:
        """Whether something has to be woken up before requests are answered."""
        return {"is_sleeping": async_engine.is_sleeping}

    @router.post("/abort_request")
    async def abort_request(body: AbortRequest) -> dict[str, int]:
        """End running requests. Their answers so far are sent with finish_reason abort."""
        name = body.rid or body.request_id or ""
        if not name and not body.abort_all:
            raise RequestError("give rid, request_id, or abort_all")
        return {"aborted": async_engine.abort("" if body.abort_all else name)}

    return router
