"""The content blocks of an Anthropic message, which grow in a stream, and the message itself."""

import json
import secrets
from collections.abc import Iterator
from typing import Any

from outrider.frontend.request_state import RequestState
from outrider.server.answer_request import Envelope
from outrider.server.protocol.tool_call_parser import AnswerDelta

Json = dict[str, Any]
Event = tuple[str, Json]  # the type and the other fields


class BlockWriter:
    """Owns the blocks of a message. The last one is open until the next begins."""

    def __init__(self) -> None:
        self._blocks: list[Json] = []
        self._input = ""  # of the open tool use, as JSON
        self._is_open = False

    def written(self) -> list[Json]:
        return self._blocks

    def add(self, delta: AnswerDelta) -> Iterator[Event]:
        """The events of a delta."""
        if delta.reasoning:
            yield from self._add_text("thinking", delta.reasoning)
        if delta.content:
            yield from self._add_text("text", delta.content)
        for part in delta.calls:
            if part.name:
                yield from self._open(_tool_use(part.name))
            if part.arguments:
                self._input += part.arguments
                yield self._delta({"type": "input_json_delta", "partial_json": part.arguments})

    def end(self) -> Iterator[Event]:
        """The last events. An answer without anything becomes an empty text."""
        if not self._blocks:
            yield from self._open({"type": "text", "text": ""})
        yield from self._close()

    def _add_text(self, kind: str, text: str) -> Iterator[Event]:
        if not self._is_open or self._blocks[-1]["type"] != kind:
            signature = {"signature": ""} if kind == "thinking" else {}
            yield from self._open({"type": kind, kind: "", **signature})
        self._blocks[-1][kind] += text
        yield self._delta({"type": f"{kind}_delta", kind: text})

    def _open(self, block: Json) -> Iterator[Event]:
        yield from self._close()
        self._blocks.append(block)
        self._is_open, self._input = True, ""
        yield "content_block_start", {"index": len(self._blocks) - 1, "content_block": dict(block)}

    def _close(self) -> Iterator[Event]:
        if not self._is_open:
            return
        self._is_open = False
        if self._blocks[-1]["type"] == "tool_use":
            self._blocks[-1]["input"] = _parsed(self._input)
        yield "content_block_stop", {"index": len(self._blocks) - 1}

    def _delta(self, delta: Json) -> Event:
        return "content_block_delta", {"index": len(self._blocks) - 1, "delta": delta}


def message(envelope: Envelope, request: RequestState, content: list[Json], stop: Json) -> Json:
    """The message in its current state."""
    usage = request.usage
    return {
        "id": envelope.id,
        "type": "message",
        "role": "assistant",
        "model": envelope.model,
        "content": content,
        **stop,
        "usage": {
            "input_tokens": usage.prompt_tokens,
            "output_tokens": usage.completion_tokens,
            "cache_read_input_tokens": usage.cached_tokens,
            "cache_creation_input_tokens": 0,
        },
    }


def stop_fields(request: RequestState, *, has_calls: bool) -> Json:
    """Why the message ended."""
    ending = request.outputs[0].ending
    if ending.finish == "stop" and isinstance(ending.stop, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": ending.stop}
    if ending.finish == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    return {"stop_reason": "tool_use" if has_calls else "end_turn", "stop_sequence": None}


def _tool_use(name: str) -> Json:
    return {"type": "tool_use", "id": f"toolu_{secrets.token_hex(12)}", "name": name, "input": {}}


def _parsed(text: str) -> Any:
    """The input of a call; one that was cut is empty."""
    try:
        return json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
