"""`/v1/models`: the one model that is served."""

import time
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from outrider.server.answer_request import ServedModel
from outrider.server.async_engine import AsyncEngine


class ModelCard(BaseModel):
    """OpenAI's record of a model; the length is vLLM's extension."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(BaseModel):
    """All models."""

    object: Literal["list"]
    data: list[ModelCard]


def model_routes(async_engine: AsyncEngine, model: ServedModel) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])
    card = ModelCard(
        id=model.name,
        object="model",
        created=int(time.time()),
        owned_by="outrider",
        max_model_len=async_engine.engine.max_context,
    )

    @router.get("/v1/models")
    async def list_models() -> ModelList:
        """The models that requests may name."""
        return ModelList(object="list", data=[card])

    @router.get("/v1/models/{name:path}")
    async def retrieve_model(name: str) -> ModelCard:
        """One model by its name."""
        model.check(name)
        return card

    return router
