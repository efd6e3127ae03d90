"""How an answer of OpenAI's older two routes is streamed: chunks, the usage at last, and DONE."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from outrider.frontend.request_state import RequestState
from outrider.server.async_engine import ChoiceDelta, RequestHandle
from outrider.server.http_errors import failed
from outrider.server.protocol.sampling_fields import AskFields
from outrider.server.protocol.usage_fields import metrics_of, usage_of
from outrider.server.routes.json_body import set_only
from outrider.server.sse import DONE, event

Choice = TypeVar("Choice")


class ChunkWriter(Protocol, Generic[Choice]):
    """Knows the shape of one route's chunks."""

    def opening(self, handle: RequestHandle) -> Sequence[Choice]:
        """What is said before anything is known."""
        ...

    def gain(self, live: RequestState, choice_delta: ChoiceDelta) -> Sequence[Choice]:
        """What a piece adds; nothing where it brings nothing that can be told."""
        ...

    def chunk(self, *choices: Choice, **more: Any) -> bytes: ...


async def write_events(
    writer: ChunkWriter[Choice], body: AskFields, handle: RequestHandle
) -> AsyncIterator[bytes]:
    """The events of a call; an output that failed ends it."""
    unused: dict[str, Any] = {"usage": None} if body.wants_usage else {}
    for choice in writer.opening(handle):
        yield writer.chunk(choice, **unused)
    async for choice_delta in handle.pieces():
        live = handle.lives[choice_delta.request]
        if choice_delta.delta.finish_reason == "error":
            yield event(json.dumps(failed(live.error).body))
            yield DONE
            return
        for choice in writer.gain(live, choice_delta):
            yield writer.chunk(choice, **unused)
    if body.wants_usage or body.return_metrics:
        usage: dict[str, Any] = {"usage": usage_of(handle.lives)} if body.wants_usage else {}
        yield writer.chunk(**usage, **asked_metrics(body, handle))
    yield DONE


def asked_metrics(body: AskFields, handle: RequestHandle) -> dict[str, Any]:
    """The metrics of a call, where they were asked for."""
    return set_only(metrics=metrics_of(handle.lives) if body.return_metrics else None)


def ending_of(live: RequestState, index: int) -> dict[str, Any]:
    """What the last chunk of an output says beside the reason."""
    return {
        "stop_reason": live.outputs[index].ending.stop,
        "matched_stop": live.outputs[index].matched,
        "seed": live.prepared.samplings[index].seed,
    }
