"""One event of a completion stream, read: text, an end, usage, metrics, or an error."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from outrider.bench.serve.request_outcome import AnswerTokens
from outrider.bench.serve.server_acceptance import ServerAcceptance, read_metrics_field
from outrider.bench.serve.sse_reader import Event

_DONE = "[DONE]"
_TEXT_FIELDS = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls")
_MAX_MESSAGE = 200  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The content of an event. Usage and acceptance come once a stream, mostly with its end."""

    has_text: bool = False
    is_finish: bool = False
    usages: tuple[AnswerTokens, ...] = ()
    acceptances: tuple[ServerAcceptance, ...] = ()


class StreamError(Exception):
    """The stream reports an error, or holds an event that cannot be read."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


def read_chunk(event: Event) -> Chunk:
    """The meaning of an event; an error event is raised."""
    if event.data.strip() == _DONE:
        return Chunk(is_finish=True)
    try:
        body = json.loads(event.data)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        if event.name == "error":
            raise StreamError("error in the stream", first_line(event.data))
        raise StreamError("unreadable event", first_line(event.data))
    if event.name == "error" or body.get("error") or body.get("object") == "error":
        raise StreamError("error in the stream", error_message(body))
    choices = [each for each in body.get("choices") or () if isinstance(each, dict)]
    metrics = body.get("metrics")
    return Chunk(
        has_text=any(_has_text(choice) for choice in choices),
        is_finish=any(choice.get("finish_reason") is not None for choice in choices),
        usages=tuple(_read_usage(body.get("usage"))),
        acceptances=read_metrics_field(
            metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
        ),
    )


def error_message(body: Any) -> str:
    """One line from an error body in OpenAI's form or a similar one."""
    inner = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(inner, dict):
        inner = inner.get("message") or inner.get("detail") or json.dumps(inner)
    return first_line(inner if isinstance(inner, str) else json.dumps(inner))


def first_line(text: str) -> str:
    lines = text.strip().splitlines() or ["(no message)"]
    return lines[0] if len(lines[0]) <= _MAX_MESSAGE else lines[0][:_MAX_MESSAGE] + "..."


def _has_text(choice: Mapping[str, Any]) -> bool:
    """Whether tokens arrived; the first chunk of a chat may hold the role only."""
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return any(delta.get(field) for field in _TEXT_FIELDS)
    return bool(choice.get("text"))


def _read_usage(usage: Any) -> Iterator[AnswerTokens]:
    if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
        yield AnswerTokens(
            prompt=usage.get("prompt_tokens") or 0,
            output=usage["completion_tokens"],
            is_counted_by_server=True,
        )
