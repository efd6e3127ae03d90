"""Routes by which an operator acts on a server, with the names of vLLM and SGLang."""

from fastapi import APIRouter
from starlette.responses import Response

from outrider.errors import RequestError
from outrider.server.async_engine import AsyncEngine
from outrider.server.json_body import JsonRoute
from outrider.server.protocol.neutral_fields import RequestBody


class AbortRequest(RequestBody):
    """Which requests to end: those of a name that the client gave, or of an answer's id."""

    rid: str | None = None
    request_id: str | None = None
    abort_all: bool | None = None
    abort_message: str | None = None  # without effect


def control_routes(async_engine: AsyncEngine) -> APIRouter:
    router = APIRouter(tags=["Operation"], route_class=JsonRoute)

    @router.get("/ping")
    @router.post("/ping")
    async def ping() -> Response:
        """As `/health`, for platforms that ask here."""
        async_engine.check_health()
        return Response(status_code=200)

    @router.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> Response:
        """Empty the prefix cache, except for prefixes in use."""
        await async_engine.flush()
        return Response(status_code=200)

    @router.post("/abort_request")
    async def abort_request(body: AbortRequest) -> dict[str, int]:
        """End running requests. Their answers so far are sent with finish_reason abort."""
        name = body.rid or body.request_id or ""
        if not name and not body.abort_all:
            raise RequestError("give rid, request_id, or abort_all")
        return {"aborted": async_engine.abort("" if body.abort_all else name)}

    return router
