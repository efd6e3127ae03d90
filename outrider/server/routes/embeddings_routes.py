"""`/v1/embeddings`."""

import base64
from array import array

from fastapi import APIRouter, Request
from starlette.responses import Response

from outrider.errors import RequestError
from outrider.frontend.call_cost import PromptRequest
from outrider.frontend.pooling import READ_ONLY, check_dimensions, pooled, to_pool
from outrider.hub.pooling_config import PoolingConfig
from outrider.server.answer_request import Envelope, ServedModel, answer_whole
from outrider.server.async_engine import AsyncEngine
from outrider.server.call_memory import memory_of
from outrider.server.json_body import JsonRoute
from outrider.server.protocol.embeddings_protocol import (
    EmbeddingItem,
    EmbeddingsAnswer,
    EmbeddingsRequest,
    EmbeddingsUsage,
)
from outrider.server.request_handle import RequestHandle
from outrider.server.response_bytes import json_response

# Values of one answer. Writing more would delay other requests by more than 50 ms.
_MAX_VALUES = {"float": 2**20, "base64": 2**23}


def embeddings_routes(async_engine: AsyncEngine, model: ServedModel) -> APIRouter:
    router = APIRouter(tags=["OpenAI"], route_class=JsonRoute)

    @router.post("/v1/embeddings", response_model=EmbeddingsAnswer)
    async def create_embeddings(body: EmbeddingsRequest, request: Request) -> Response:
        """The embeddings of one text or several."""
        served = model.choose(body.model)
        hidden_size = async_engine.engine.facts.hidden_size
        width = check_dimensions(body.dimensions, model.pooling, hidden_size)
        prompts = body.prompts
        _check_size(len(prompts) * width, body.encoding_format or "float")
        prepared = await async_engine.prepare(
            lambda: [PromptRequest(prompt=prompt, params=READ_ONLY) for prompt in prompts],
            memory_of(request).admit,
            served.find_adapter,
        )
        wanted = [to_pool(each, model.pooling) for each in prepared]
        envelope = served.envelope("embd", body.request_id or "")
        names = (envelope.id, body.request_id or "")
        handle = await answer_whole(async_engine, request, wanted, names)
        return json_response(_answer(handle, envelope, body, model.pooling, width))

    return router


def _check_size(num_values: int, encoding: str) -> None:
    if num_values > _MAX_VALUES[encoding]:
        raise RequestError(
            f"the embeddings have {num_values} values together, and an answer in {encoding} has at "
            f"most {_MAX_VALUES[encoding]}; send fewer texts at once"
        )


def _answer(
    handle: RequestHandle,
    envelope: Envelope,
    body: EmbeddingsRequest,
    pooling: PoolingConfig,
    width: int,
) -> EmbeddingsAnswer:
    items = []
    for index, request in enumerate(handle.requests):
        vector = pooled(request, pooling, width)
        encoded: list[float] | str = list(vector)
        if body.encoding_format == "base64":
            encoded = base64.b64encode(array("f", vector).tobytes()).decode()
        items.append(EmbeddingItem(object="embedding", index=index, embedding=encoded))
    num_tokens = sum(request.usage.prompt_tokens for request in handle.requests)
    return EmbeddingsAnswer(
        id=envelope.id,
        object="list",
        created=envelope.created,
        model=envelope.model,
        data=items,
        usage=EmbeddingsUsage(prompt_tokens=num_tokens, total_tokens=num_tokens),
    )
