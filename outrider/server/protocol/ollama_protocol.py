"""Ollama's requests, as the chats that they mean."""

import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from outrider.errors import RequestError
from outrider.server.http_errors import unsupported
from outrider.server.protocol.chat_protocol import ChatRequest, chat_of
from outrider.server.protocol.image_parts import base64_part
from outrider.server.protocol.neutral_fields import RequestBody
from outrider.server.protocol.tools import MAX_TOOLS

Json = dict[str, Any]

_SAME = ("temperature", "top_p", "top_k", "min_p", "seed", "stop")
_RENAMED = {
    "num_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
# Options of the machine or of how memory is used: they change no answer here.
_INERT = ("num_ctx", "num_keep", "num_batch", "num_gpu", "num_thread", "use_mmap", "main_gpu")


class OllamaModel(BaseModel):
    """Names a model; `:latest` is left out."""

    model_config = ConfigDict(strict=True, extra="ignore")

    model: str | None = None
    name: str | None = None

    @property
    def named(self) -> str | None:
        return (self.model or self.name or "").removesuffix(":latest") or None


class OllamaBody(RequestBody):
    """What chats and prompts have in common."""

    model: str
    stream: bool | None = None
    format: str | Json | None = None
    options: Json | None = None
    keep_alive: Any = None  # without effect: the model is always loaded
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    learn: bool | None = None  # an extension of ours

    @property
    def named(self) -> str | None:
        return self.model.removesuffix(":latest") or None

    def chat_fields(self) -> Json:
        """The fields of a chat besides its messages."""
        if self.logprobs:
            raise unsupported("logprobs", "logprobs")
        fields: Json = {"stream": self.stream, "learn": self.learn}
        for name, value in (self.options or {}).items():
            if name in _SAME or name in _RENAMED:
                fields[_RENAMED.get(name, name)] = value
            elif name not in _INERT and value is not None:
                raise unsupported(f"options.{name}", name)
        if fields.get("max_tokens") in (-1, -2):  # no limit
            del fields["max_tokens"]
        if self.think is not None:
            fields["chat_template_kwargs"] = {"enable_thinking": bool(self.think)}
        return {**fields, **self._format()}

    def _format(self) -> Json:
        if not self.format:
            return {}
        if self.format == "json":
            return {"response_format": {"type": "json_object"}}
        if isinstance(self.format, str):
            raise RequestError('format must be "json" or a JSON schema')
        return {"structured_outputs": {"json": self.format}}


class OllamaChat(OllamaBody):
    """A conversation."""

    messages: Annotated[list[Json], Field(min_length=1, fail_fast=True)]
    tools: Annotated[list[Json], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None

    def in_chat(self) -> ChatRequest:
        turns = [_turn(message) for message in self.messages]
        return chat_of({"messages": turns, "tools": self.tools or None, **self.chat_fields()})


class OllamaGenerate(OllamaBody):
    """One prompt, with a system message if given."""

    prompt: str
    system: str | None = None
    suffix: str | None = None
    raw: bool | None = None
    images: list[Any] | None = None
    template: str | None = None
    context: list[int] | None = None

    def in_chat(self) -> ChatRequest:
        for name in ("suffix", "raw", "template", "context"):
            if self.model_dump(include={name})[name]:
                raise unsupported(name, name)
        system = [{"role": "system", "content": self.system}] if self.system else []
        content = _seen(self.prompt, self.images) if self.images else self.prompt
        turns = [*system, {"role": "user", "content": content}]
        return chat_of({"messages": turns, **self.chat_fields()})


def _seen(text: Any, images: Any) -> list[Json]:
    """The images, in base64, and then the text."""
    if not isinstance(images, list):
        raise RequestError("images must be a list of base64 texts")
    parts = [base64_part(each) for each in images]
    return [*parts, {"type": "text", "text": text}] if text else parts


def _turn(message: Json) -> Json:
    """A message of a chat. Ollama's calls have no ids, and arguments as objects."""
    calls = message.get("tool_calls")
    turn: Json = {name: message[name] for name in ("role", "content") if name in message}
    if message.get("images"):
        turn["content"] = _seen(message.get("content"), message["images"])
    if not isinstance(calls, list):
        return turn
    return {**turn, "tool_calls": [_call(place, call) for place, call in enumerate(calls)]}


def _call(place: int, call: Any) -> Json:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise RequestError("tool_calls must hold objects with a function")
    arguments = json.dumps(function.get("arguments") or {})
    named = {"name": function.get("name"), "arguments": arguments}
    return {"id": f"call_{place}", "type": "function", "function": named}
