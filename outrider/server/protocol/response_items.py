"""The output items of a response, which grow in a stream, and the object around them."""

import secrets
from typing import Any

from outrider.frontend.request_state import RequestState
from outrider.server.answer_request import Envelope
from outrider.server.http_errors import failed
from outrider.server.protocol.responses_protocol import ResponsesRequest
from outrider.server.protocol.tools import new_id

Json = dict[str, Any]


class MessageItem:
    """Owns the text of one message, and its log-probabilities if they were requested."""

    def __init__(self) -> None:
        self.id = f"msg_{secrets.token_hex(12)}"
        self.text = ""
        self.logprobs: list[Json] = []

    def written(self, status: str) -> Json:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [] if status == "in_progress" else [self.part],
        }

    @property
    def part(self) -> Json:
        return text_part(self.text, self.logprobs)


class CallItem:
    """Owns the arguments of one function call."""

    def __init__(self, name: str) -> None:
        self.id = f"fc_{secrets.token_hex(12)}"
        self.name = name
        self.arguments = ""
        self._call_id = new_id()

    def written(self, status: str) -> Json:
        return {
            "id": self.id,
            "type": "function_call",
            "status": status,
            "call_id": self._call_id,
            "name": self.name,
            "arguments": self.arguments,
        }


class ReasoningItem:
    """Owns the text of the reasoning before an answer."""

    def __init__(self) -> None:
        self.id = f"rs_{secrets.token_hex(12)}"
        self.text = ""

    def written(self, status: str) -> Json:
        content = [{"type": "reasoning_text", "text": self.text}]
        return {
            "id": self.id,
            "type": "reasoning",
            "status": status,
            "summary": [],
            "content": [] if status == "in_progress" else content,
        }


Item = MessageItem | CallItem | ReasoningItem


def text_part(text: str, logprobs: list[Json]) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def status_of(request: RequestState) -> str:
    """The status of a response that has ended."""
    statuses = {"length": "incomplete", "error": "failed"}
    return statuses.get(request.outputs[0].ending.finish, "completed")


def response_object(
    body: ResponsesRequest,
    envelope: Envelope,
    request: RequestState,
    status: str,
    output: list[Json],
) -> Json:
    """The response object in its current state."""
    params = request.prepared.params
    return {
        "id": envelope.id,
        "object": "response",
        "created_at": envelope.created,
        "status": status,
        "model": envelope.model,
        "error": _error(request) if status == "failed" else None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "output": output,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "temperature": params.temperature,
        "top_logprobs": params.logprobs or 0,
        "text": {"format": (body.text or {}).get("format") or {"type": "text"}},
        **_tools(body),
        "top_p": params.top_p,
        "truncation": "disabled",
        "usage": None if status == "in_progress" else _usage(request),
        "user": body.user,
        "seed": request.prepared.samplings[0].seed,
    }


def _error(request: RequestState) -> Json:
    """The error of a response that failed, with a code that OpenAI's API has."""
    error = failed(request.failure)
    code = "invalid_prompt" if error.status < 500 else "server_error"
    return {"code": code, "message": error.message}


def _tools(body: ResponsesRequest) -> Json:
    """The tools and the choice as given. OpenAI's client needs every field of a tool."""
    unset = {"description": None, "parameters": None, "strict": None}
    tools = [{**unset, **tool.model_dump(exclude_unset=True)} for tool in body.tools or ()]
    choice = body.tool_choice or "auto"
    return {
        "tools": tools,
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
    }


def _usage(request: RequestState) -> Json:
    usage = request.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
