"""`/v1/models`: the model that is served, and its adapters."""

import time
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from outrider.config.engine_config import RoleMode
from outrider.server.answer_request import ServedModel
from outrider.server.async_engine import AsyncEngine


class ModelCard(BaseModel):
    """OpenAI's record of a model; length and parent are vLLM's extensions."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    parent: str | None = None  # of an adapter: the model


class ModelList(BaseModel):
    """All models."""

    object: Literal["list"]
    data: list[ModelCard]


def _owner(mode: RoleMode) -> str:
    """smg reads here how it should name transfers: our roles have the rooms of SGLang.

    A server with another owner gets requests that name no transfer, and computes all prompts.
    """
    return "outrider" if mode == "null" else "sglang"


def model_routes(async_engine: AsyncEngine, model: ServedModel) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])
    card = ModelCard(
        id=model.name,
        object="model",
        created=int(time.time()),
        owned_by=_owner(async_engine.rules.role.mode),
        max_model_len=async_engine.engine.max_context,
    )

    def adapter_card(name: str) -> ModelCard:
        return card.model_copy(update={"id": name, "parent": model.name})

    @router.get("/v1/models")
    async def list_models() -> ModelList:
        """The models that requests may name."""
        return ModelList(object="list", data=[card, *map(adapter_card, model.adapters.names)])

    @router.get("/v1/models/{name:path}")
    async def retrieve_model(name: str) -> ModelCard:
        """One model by its name."""
        model.check(name)
        return adapter_card(name) if name in model.adapters.names else card

    return router
