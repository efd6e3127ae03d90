"""`/tokenize` and `/detokenize`."""

from fastapi import APIRouter

from outrider.errors import RequestError
from outrider.server.answer_request import ServedModel
from outrider.server.async_engine import Desk
from outrider.server.protocol.tokenize_protocol import (
    DetokenizeAnswer,
    DetokenizeRequest,
    TokenizeAnswer,
    TokenizeRequest,
)


def token_routes(desk: Desk, model: ServedModel) -> APIRouter:
    router = APIRouter(tags=["Tokens"])

    @router.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> TokenizeAnswer:
        """The token ids of a text or a conversation."""
        model.check(body.model)
        return await desk.aside(lambda: _tokenize(desk, body))

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> DetokenizeAnswer:
        """The text of token ids."""
        model.check(body.model)
        return await desk.aside(lambda: _detokenize(desk, body))

    return router


def _tokenize(desk: Desk, body: TokenizeRequest) -> TokenizeAnswer:
    prompt = body.text(desk.frontend)
    tokens = desk.tokenizer.encode(prompt.text, add_special=prompt.add_special)
    texts = [desk.tokenizer.token_text(token) for token in tokens]
    return TokenizeAnswer(
        count=len(tokens),
        max_model_len=desk.engine.max_context,
        tokens=tokens,
        token_strs=texts if body.return_token_strs else None,
    )


def _detokenize(desk: Desk, body: DetokenizeRequest) -> DetokenizeAnswer:
    most = desk.engine.vocab_size - 1
    if any(not 0 <= token <= most for token in body.tokens):
        raise RequestError(f"tokens must be between 0 and {most}")
    return DetokenizeAnswer(prompt=desk.tokenizer.decode(body.tokens, skip_special=False))
