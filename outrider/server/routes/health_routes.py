"""Health, metrics, and a check for leaked rows and pages."""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from outrider import __version__
from outrider.server.async_engine import AsyncEngine


def health_routes(async_engine: AsyncEngine) -> APIRouter:
    router = APIRouter(tags=["Operation"])

    @router.get("/health")
    async def health() -> Response:
        """200 while the engine can answer, else 503 with the reason."""
        async_engine.check_health()
        return Response(status_code=200)

    @router.get("/metrics")
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(async_engine.meter.render(), media_type=CONTENT_TYPE_LATEST)

    @router.get("/version")
    async def version() -> dict[str, str]:
        """The version of the server."""
        return {"version": __version__}

    @router.get("/invariants")
    async def invariants() -> dict[str, Any]:
        """Rows and pages in use. An idle engine must hold none."""
        stats = await async_engine.stats()
        is_sharing = stats.transfers.offered or stats.transfers.arriving
        is_busy = stats.queue.waiting or stats.queue.running or async_engine.num_open
        is_idle = not (is_busy or is_sharing)
        is_empty = all(stock.free == stock.total for stock in (stats.rows, stats.pages))
        return {
            **asdict(stats),
            "open_calls": async_engine.num_open,
            "worker_pid": async_engine.replicas[0].worker_pid,
            "worker_pids": [each.worker_pid for each in async_engine.replicas],
            "is_idle": is_idle,
            "has_leak": is_idle and not is_empty,
        }

    return router
