"""Whether the server works, what it counts, and whether it keeps what it should give back."""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from outrider import __version__
from outrider.server.async_engine import Desk
from outrider.server.http_errors import restarting


def health_routes(desk: Desk) -> APIRouter:
    router = APIRouter(tags=["Operation"])

    @router.get("/health")
    async def health() -> Response:
        """200 while there is an engine to answer, else 503."""
        if not desk.is_ready:
            raise restarting()
        return Response(status_code=200)

    @router.get("/metrics")
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(desk.meter.render(), media_type=CONTENT_TYPE_LATEST)

    @router.get("/version")
    async def version() -> dict[str, str]:
        """The version of the server."""
        return {"version": __version__}

    @router.get("/invariants")
    async def invariants() -> dict[str, Any]:
        """What is in use once the engine has done all it was told; idle, nothing may be."""
        census = await desk.census()
        is_idle = not (census.queue.waiting or census.queue.running or desk.num_calls)
        is_empty = all(stock.free == stock.total for stock in (census.rows, census.pages))
        return {
            **asdict(census),
            "open_calls": desk.num_calls,
            "worker_pid": desk.worker_pid,
            "is_idle": is_idle,
            "has_leak": is_idle and not is_empty,
        }

    return router
