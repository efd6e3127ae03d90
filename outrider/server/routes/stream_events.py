"""How chat completions and completions are streamed: chunks, the usage at the end, and DONE."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from outrider.frontend.request_state import OutputState, RequestState
from outrider.server.http_errors import failed
from outrider.server.protocol.sampling_fields import ReportFields
from outrider.server.protocol.usage_fields import metrics_of, usage_of
from outrider.server.request_handle import ChoiceDelta, RequestHandle
from outrider.server.response_bytes import DONE, event, set_only

Choice = TypeVar("Choice")


class ChunkWriter(Protocol, Generic[Choice]):
    """Writes the chunks of one route."""

    def opening_choices(self, handle: RequestHandle) -> Sequence[Choice]:
        """The choices of the chunks before the first token."""
        ...

    def delta_choices(self, request: RequestState, choice_delta: ChoiceDelta) -> Sequence[Choice]:
        """The choices that a delta adds; empty if nothing can be sent yet."""
        ...

    def chunk(self, *choices: Choice, **more: Any) -> bytes: ...


async def write_events(
    writer: ChunkWriter[Choice], body: ReportFields, handle: RequestHandle
) -> AsyncIterator[bytes]:
    """The events of an answer. An output that failed ends the stream."""
    unused: dict[str, Any] = {"usage": None} if body.wants_usage else {}
    for choice in writer.opening_choices(handle):
        yield writer.chunk(choice, **unused)
    async for choice_delta in handle.deltas():
        request = handle.requests[choice_delta.request]
        if choice_delta.delta.finish_reason == "error":
            yield event(json.dumps(failed(request.failure).body))
            yield DONE
            return
        for choice in writer.delta_choices(request, choice_delta):
            yield writer.chunk(choice, **unused)
    if body.wants_usage or body.return_metrics:
        usage: dict[str, Any] = {"usage": usage_of(handle.requests)} if body.wants_usage else {}
        yield writer.chunk(**usage, **requested_metrics(body, handle))
    yield DONE


def requested_metrics(body: ReportFields, handle: RequestHandle) -> dict[str, Any]:
    """The metrics of an answer, if they were requested."""
    return set_only(metrics=metrics_of(handle.requests) if body.return_metrics else None)


def reported_ids(body: ReportFields, token_ids: Sequence[int]) -> dict[str, Any]:
    """The ids of an output or a delta, if they were requested."""
    return {"token_ids": list(token_ids)} if body.return_token_ids else {}


def reported_states(body: ReportFields, output: OutputState) -> dict[str, Any]:
    """The hidden states of an output, if they were requested: the last one flat, as in SGLang."""
    if body.hidden_states_mode == "none":
        return {}
    rows = output.hidden_states.rows()
    is_last = body.hidden_states_mode == "last"
    return {"hidden_states": [value for row in rows for value in row] if is_last else rows}


def ending_fields(request: RequestState, index: int) -> dict[str, Any]:
    """The fields of an output's last chunk besides the finish reason."""
    return {
        "stop_reason": request.outputs[index].ending.stop,
        "matched_stop": request.outputs[index].matched,
        "seed": request.prepared.samplings[index].seed,
    }
