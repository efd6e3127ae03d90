"""How busy the server is, as routers of SGLang and vLLM ask for it."""

from typing import Any

from fastapi import APIRouter

from outrider.server.async_engine import AsyncEngine
from outrider.wire.engine_stats import EngineStats


def load_routes(async_engine: AsyncEngine) -> APIRouter:
    router = APIRouter(tags=["Operation"])

    @router.get("/v1/loads")
    async def loads() -> dict[str, Any]:
        """Requests and tokens of the server, for routers that balance by load."""
        load = _load(await async_engine.stats(), async_engine)
        return {
            "loads": [load],
            "aggregate": {
                "total_running_reqs": load["num_running_reqs"],
                "total_waiting_reqs": load["num_waiting_reqs"],
                "total_reqs": load["num_total_reqs"],
                "total_tokens": load["num_used_tokens"],
            },
        }

    @router.get("/get_load")
    async def get_load() -> list[dict[str, Any]]:
        """The same with older names."""
        load = _load(await async_engine.stats(), async_engine)
        return [
            {
                "dp_rank": 0,
                "num_reqs": load["num_total_reqs"],
                "num_waiting_reqs": load["num_waiting_reqs"],
                "num_tokens": load["num_used_tokens"],
            }
        ]

    return router


def _load(stats: EngineStats, async_engine: AsyncEngine) -> dict[str, Any]:
    page_size = async_engine.engine.facts.host.page_size
    num_used = stats.pages.total - stats.pages.free
    return {
        "dp_rank": 0,
        "num_running_reqs": stats.queue.running,
        "num_waiting_reqs": stats.queue.waiting,
        "num_total_reqs": stats.queue.running + stats.queue.waiting,
        "num_used_tokens": num_used * page_size,
        "max_total_num_tokens": stats.pages.total * page_size,
        "token_usage": num_used / stats.pages.total,
    }
