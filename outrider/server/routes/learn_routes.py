"""Routes about learning beside the server: what was learned, pauses and rollbacks."""

from typing import Any

from fastapi import APIRouter, Depends

from outrider.errors import ConfigError, RequestError
from outrider.server.async_engine import AsyncEngine
from outrider.server.same_origin import refuse_other_sites


def learn_routes(async_engine: AsyncEngine) -> APIRouter:
    router = APIRouter(tags=["Operation"])
    operators = [Depends(refuse_other_sites)]

    @router.get("/learn")
    async def learn() -> dict[str, Any]:
        """What has been learned, and which version of the head is in use."""
        return async_engine.learning.describe()

    @router.post("/learn/rollback", dependencies=operators)
    async def rollback(version: int | None = None) -> dict[str, Any]:
        """Draft with an earlier version of the head, and train no more until `/learn/resume`."""
        try:
            await async_engine.learning.roll_back(version)
        except ConfigError as error:
            raise RequestError(str(error)) from error
        return async_engine.learning.describe()

    @router.post("/learn/pause", dependencies=operators)
    async def pause() -> dict[str, Any]:
        """Train no more; texts are still collected."""
        async_engine.learning.set_paused(True)
        return async_engine.learning.describe()

    @router.post("/learn/resume", dependencies=operators)
    async def resume() -> dict[str, Any]:
        """Train again."""
        async_engine.learning.set_paused(False)
        return async_engine.learning.describe()

    return router
