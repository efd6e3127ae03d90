"""`/tokenize` and `/detokenize`."""

from fastapi import APIRouter, Request

from outrider.errors import RequestError
from outrider.server.answer_request import ServedModel
from outrider.server.async_engine import AsyncEngine
from outrider.server.call_memory import TEXT_FACTOR, CallMemory, memory_of
from outrider.server.json_body import JsonRoute
from outrider.server.protocol.tokenize_protocol import (
    DetokenizeAnswer,
    DetokenizeRequest,
    TokenizeAnswer,
    TokenizeRequest,
)


def token_routes(async_engine: AsyncEngine, model: ServedModel) -> APIRouter:
    router = APIRouter(tags=["Tokens"], route_class=JsonRoute)

    @router.post("/tokenize")
    async def tokenize(body: TokenizeRequest, request: Request) -> TokenizeAnswer:
        """The token ids of a text or a conversation."""
        model.check(body.model)
        memory = memory_of(request)
        return await async_engine.run_in_thread(lambda: _tokenize(async_engine, body, memory))

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> DetokenizeAnswer:
        """The text of token ids."""
        model.check(body.model)
        return await async_engine.run_in_thread(lambda: _detokenize(async_engine, body))

    return router


def _tokenize(
    async_engine: AsyncEngine, body: TokenizeRequest, memory: CallMemory
) -> TokenizeAnswer:
    prompt = body.text(async_engine.frontend)
    memory.take(len(prompt.text) * TEXT_FACTOR)
    tokens = async_engine.tokenizer.encode(prompt.text, add_special=prompt.add_special)
    texts = [async_engine.tokenizer.token_text(token) for token in tokens]
    return TokenizeAnswer(
        count=len(tokens),
        max_model_len=async_engine.engine.max_context,
        tokens=tokens,
        token_strs=texts if body.return_token_strs else None,
    )


def _detokenize(async_engine: AsyncEngine, body: DetokenizeRequest) -> DetokenizeAnswer:
    last = async_engine.engine.vocab_size - 1
    if any(not 0 <= token <= last for token in body.tokens):
        raise RequestError(f"tokens must be between 0 and {last}")
    return DetokenizeAnswer(prompt=async_engine.tokenizer.decode(body.tokens, skip_special=False))
