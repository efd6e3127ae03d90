"""SGLang's own routes, so that its clients and test kits run."""

import json
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from outrider import __version__
from outrider.frontend.call_cost import PromptRequest
from outrider.frontend.prompts import TokenPrompt
from outrider.frontend.sampling_params import SamplingParams
from outrider.server.answer_request import ServedModel, answer_stream, answer_whole
from outrider.server.async_engine import AsyncEngine
from outrider.server.call_memory import memory_of
from outrider.server.http_errors import failed
from outrider.server.json_body import JsonRoute
from outrider.server.protocol.sglang_protocol import GenerateRequest, generated
from outrider.server.protocol.transfer_fields import offered_params
from outrider.server.request_handle import RequestHandle
from outrider.server.response_bytes import DONE, event
from outrider.server.same_origin import refuse_other_sites

# Each event repeats the whole answer. Events of long answers come with every 1/256 of it, so that
# all events together are at most 256 times as long as the answer, not its length squared.
_MAX_REPEATS = 256


def native_routes(async_engine: AsyncEngine, model: ServedModel) -> APIRouter:
    router = APIRouter(tags=["SGLang"], route_class=JsonRoute)

    @router.post("/generate")
    async def generate(body: GenerateRequest, request: Request) -> Response:
        """Continue one prompt or several."""
        served = model.choose(body.named_model)
        body.check()
        async_engine.rules.check_embeds(body.has_embeds)
        read = partial(_read_requests, body, served, async_engine)
        prepared = await async_engine.prepare(read, memory_of(request).admit)
        writer = GenerateWriter(async_engine, body)
        if body.stream:
            return await answer_stream(async_engine, prepared, writer.stream, writer.names)
        handle = await answer_whole(async_engine, request, prepared, writer.names)
        # Hidden states are many numbers; this encoder takes a tenth of the time of Python's.
        return Response(msgspec.json.encode(writer.whole(handle)), media_type="application/json")

    @router.get("/health_generate")
    async def health_generate(request: Request) -> Response:
        """200 once the engine has computed a token."""
        params = SamplingParams(max_tokens=1, temperature=0.0)
        prepared = async_engine.frontend.inputs.prepare(TokenPrompt((0,)), params)
        await answer_whole(async_engine, request, [prepared])
        return Response(status_code=200)

    @router.get("/flush_cache", dependencies=[Depends(refuse_other_sites)])
    @router.post("/flush_cache", dependencies=[Depends(refuse_other_sites)])
    async def flush_cache() -> Response:
        """Empty the prefix cache, except for prefixes in use."""
        await async_engine.flush()
        return Response("Cache flushed.\n", media_type="text/plain")

    @router.get("/get_model_info")
    @router.get("/model_info")
    async def model_info() -> dict[str, Any]:
        """Facts about the model, without its path on this machine."""
        return {
            "model_path": model.name,
            "tokenizer_path": model.name,
            "is_generation": True,
            "max_model_len": async_engine.engine.max_context,
        }

    @router.get("/get_server_info")
    @router.get("/server_info")
    async def server_info() -> dict[str, Any]:
        """Sizes, ranks, the mean acceptance length, and how busy the device is."""
        return _server_info(async_engine, model)

    return router


def _read_requests(
    body: GenerateRequest, model: ServedModel, async_engine: AsyncEngine
) -> Sequence[PromptRequest]:
    inputs = async_engine.frontend.inputs
    pairs = zip(body.prompts, body.image_urls, strict=True)
    prompts = [inputs.with_images(prompt, urls) if urls else prompt for prompt, urls in pairs]
    columns = zip(prompts, body.params(model.sampling_defaults), body.lora_paths, strict=True)
    requests = [
        PromptRequest(prompt=prompt, params=params, adapter=model.adapter_of(lora_path))
        for prompt, params, lora_path in columns
    ]
    return body.split(async_engine.rules.role, requests)


def _server_info(async_engine: AsyncEngine, model: ServedModel) -> dict[str, Any]:
    facts = async_engine.engine.facts
    budget, num_tokens = facts.draft.budget, facts.num_pages * facts.host.page_size
    return {
        "version": __version__,
        "served_model_name": model.name,
        "model_path": model.name,  # not its path on this machine
        "max_total_num_tokens": num_tokens,
        "max_total_tokens": num_tokens,  # routers look for this name
        "context_length": facts.host.max_context,
        "max_running_requests": facts.host.max_rows,
        "page_size": facts.host.page_size,
        "tp_size": facts.memory.tp_size,
        "dp_size": max(len(async_engine.ranks) // facts.memory.tp_size, 1),
        "load_balance_method": "auto",  # among the replicas of this server: by prefix and load
        "ranks": [asdict(each) for each in async_engine.ranks],
        "disaggregation_mode": async_engine.rules.role.mode,
        "disaggregation_bootstrap_port": async_engine.rules.role.port,
        "speculative_num_steps": budget.steps,
        "speculative_eagle_topk": budget.topk,
        "speculative_num_draft_tokens": budget.nodes,
        "learn": async_engine.learning.describe(),
        "internal_states": [
            {
                "avg_spec_accept_length": async_engine.meter.accept_length,
                "forward_occupancy": async_engine.meter.forward_occupancy,
            }
        ],
    }


class GenerateWriter:
    """Writes the answer to one request. Each event repeats the whole text, as SGLang's do."""

    def __init__(self, async_engine: AsyncEngine, body: GenerateRequest) -> None:
        self._tokenizer = async_engine.tokenizer
        self._body = body
        self._is_single = body.is_single
        self.names = tuple(body.rid) if isinstance(body.rid, list) else (body.rid or "",)
        self._rid = body.rid if isinstance(body.rid, str) else secrets.token_hex(16)

    def whole(self, handle: RequestHandle) -> Any:
        outputs = [
            self._output(handle, place, index)
            for place, request in enumerate(handle.requests)
            for index in range(len(request.outputs))
        ]
        if not self._is_single or len(outputs) > 1:
            return outputs
        return outputs[0] | offered_params(self._body, handle)

    async def stream(self, handle: RequestHandle) -> AsyncIterator[bytes]:
        """An event for each delta of an output, and for several of them once it is long."""
        num_sent: dict[int, int] = {}  # tokens of each choice in its last event
        async for choice_delta in handle.deltas():
            request = handle.requests[choice_delta.request]
            num_tokens = len(request.outputs[choice_delta.delta.index].token_ids)
            num_new = num_tokens - num_sent.get(choice_delta.choice, 0)
            is_last = choice_delta.delta.finish_reason is not None
            if num_new * _MAX_REPEATS < num_tokens and not is_last:
                continue
            num_sent[choice_delta.choice] = num_tokens
            if choice_delta.delta.finish_reason == "error":
                yield event(json.dumps(failed(request.failure).body))
                break
            output = self._output(handle, choice_delta.request, choice_delta.delta.index)
            yield event(json.dumps({"index": choice_delta.choice, **output}))
        yield DONE

    def _output(self, handle: RequestHandle, place: int, index: int) -> dict[str, Any]:
        name = self._rid if self._is_single else f"{self._rid}-{place}"
        return generated(handle.requests[place], index, self._tokenizer, name=name)
