"""`/tokenize` and `/detokenize`."""

from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from outrider.errors import RequestError
from outrider.frontend.prompts import TextPrompt
from outrider.server.answer_request import ServedModel
from outrider.server.async_engine import AsyncEngine
from outrider.server.call_memory import memory_of
from outrider.server.json_body import JsonRoute
from outrider.server.limited_text import with_text
from outrider.server.protocol.tokenize_protocol import (
    DetokenizeAnswer,
    DetokenizeRequest,
    TokenizeAnswer,
    TokenizeRequest,
)
from outrider.server.response_bytes import json_response


def token_routes(async_engine: AsyncEngine, model: ServedModel) -> APIRouter:
    router = APIRouter(tags=["Tokens"], route_class=JsonRoute)

    # Answers are written in the thread, too: FastAPI would take seconds for a million ids.
    @router.post("/tokenize", response_model=TokenizeAnswer)
    async def tokenize(body: TokenizeRequest, request: Request) -> Response:
        """The token ids of a text or a conversation."""
        model.check(body.model)
        read, work = (
            partial(body.text, async_engine.frontend),
            partial(_tokenize, async_engine, body),
        )
        return await with_text(async_engine, memory_of(request), read, work)

    @router.post("/detokenize", response_model=DetokenizeAnswer)
    async def detokenize(body: DetokenizeRequest) -> Response:
        """The text of token ids."""
        model.check(body.model)
        work = partial(_detokenize, async_engine, body)
        return await async_engine.run_in_thread(work, size=len(body.tokens))

    return router


def _tokenize(async_engine: AsyncEngine, body: TokenizeRequest, prompt: TextPrompt) -> Response:
    tokenizer = async_engine.tokenizer
    tokens = list(async_engine.frontend.inputs.tokenize(prompt).token_ids)
    texts = map(tokenizer.token_text, tokens)
    answer = TokenizeAnswer(
        count=len(tokens),
        max_model_len=async_engine.engine.max_context,
        tokens=tokens,
        token_strs=list(texts) if body.return_token_strs else None,
    )
    return json_response(answer)


def _detokenize(async_engine: AsyncEngine, body: DetokenizeRequest) -> Response:
    last = async_engine.engine.vocab_size - 1
    if any(not 0 <= token <= last for token in body.tokens):
        raise RequestError(f"tokens must be between 0 and {last}")
    text = async_engine.tokenizer.decode(body.tokens, skip_special=False)
    return json_response(DetokenizeAnswer(prompt=text))
