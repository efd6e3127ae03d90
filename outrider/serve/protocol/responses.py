"""`/v1/responses`, as far as text goes."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from outrider.api.live import LiveRequest
from outrider.api.params import SamplingParams
from outrider.errors import RequestError
from outrider.serve.conduct import Envelope
from outrider.serve.errors import unsupported
from outrider.serve.protocol.sampling import AskFields, form_of, refuse

_TEXT_PARTS = ("input_text", "output_text", "text")


class InputItem(BaseModel):
    """A message of the conversation so far."""

    model_config = ConfigDict(strict=True, extra="ignore")

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[dict[str, Any]]

    @property
    def turn(self) -> dict[str, Any]:
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": _text(self.content)}


class ResponsesRequest(AskFields):
    """OpenAI's fields, and the extensions."""

    input: str | list[InputItem]
    instructions: str | None = None
    max_output_tokens: int | None = None
    text: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None  # an extension
    # refused when they ask for something
    tools: list[Any] | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    prompt: Any = None
    # accepted, without effect here
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    include: list[str] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    top_logprobs: int | None = None
    max_tool_calls: int | None = None

    def check(self) -> None:
        """Refuse what is not there, by name."""
        names = ("tools", "previous_response_id", "conversation", "background", "prompt")
        refuse(self, (*names, "include", "top_logprobs"))
        if self.n not in (None, 1):
            raise unsupported("n", "n other than 1")

    def params(self) -> SamplingParams:
        length = self.max_tokens if self.max_output_tokens is None else self.max_output_tokens
        form = form_of((self.text or {}).get("format"), self.structured_outputs)
        return self.sampling(SamplingParams(max_tokens=None), max_tokens=length, structured=form)

    @property
    def turns(self) -> list[dict[str, Any]]:
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        if isinstance(self.input, str):
            return [*system, {"role": "user", "content": self.input}]
        return [*system, *(item.turn for item in self.input)]


def _text(content: str | list[dict[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    for part in content:
        if part.get("type") not in _TEXT_PARTS or not isinstance(part.get("text"), str):
            raise RequestError("input content may only hold parts of type input_text")
    return "\n".join(part["text"] for part in content)


def response_object(
    body: ResponsesRequest, envelope: Envelope, live: LiveRequest, status: str
) -> dict[str, Any]:
    """The response as it is now; its output is there once it has ended."""
    params, transcript = live.prepared.params, live.transcripts[0]
    is_over = status in ("completed", "incomplete", "failed")
    is_cut = status == "incomplete"
    return {
        "id": envelope.id,
        "object": "response",
        "created_at": envelope.created,
        "status": status,
        "model": envelope.model,
        "error": {"code": "server_error", "message": live.error} if status == "failed" else None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "output": [output_item(envelope, transcript.text, status)] if is_over else [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "temperature": params.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": params.top_p,
        "truncation": "disabled",
        "usage": _usage(live) if is_over else None,
        "user": body.user,
        "seed": live.prepared.samplings[0].seed,
    }


def output_item(envelope: Envelope, text: str, status: str) -> dict[str, Any]:
    """The one message of a response."""
    return {
        "id": envelope.id.replace("resp", "msg"),
        "type": "message",
        "role": "assistant",
        "status": status if status != "failed" else "incomplete",
        "content": [output_text(text)],
    }


def output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(live: LiveRequest) -> dict[str, Any]:
    usage = live.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
