"""`/v1/messages`: Anthropic's request, as the chat that it means."""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from outrider.errors import RequestError
from outrider.server.protocol.chat_protocol import ChatRequest, chat_of
from outrider.server.protocol.image_parts import base64_part, image_part, mixed_content
from outrider.server.protocol.neutral_fields import RequestBody
from outrider.server.protocol.sampling_fields import MAX_STOPS, StopString
from outrider.server.protocol.tools import MAX_TOOLS, Name
from outrider.server.protocol.transfer_fields import TransferFields

Json = dict[str, Any]
Blocks = Annotated[list[Json], Field(fail_fast=True)]


class MessagesTool(BaseModel):
    """A function with the schema of its input."""

    model_config = ConfigDict(strict=True, extra="ignore")

    name: Name
    type: Literal["custom"] | None = None
    description: str | None = None
    input_schema: Json

    @property
    def in_chat(self) -> Json:
        function = {"name": self.name, "parameters": self.input_schema}
        if self.description is not None:
            function["description"] = self.description
        return {"type": "function", "function": function}


class MessagesToolChoice(BaseModel):
    """Which tools may or must be used."""

    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @property
    def in_chat(self) -> Any:
        if self.type == "tool":
            return {"type": "function", "function": {"name": self.name or ""}}
        return "required" if self.type == "any" else self.type


class MessagesThinking(BaseModel):
    """Whether the model reasons first, and for how many tokens."""

    model_config = ConfigDict(strict=True, extra="ignore")

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=0)] | None = None


class MessagesTurn(BaseModel):
    """A message of the conversation."""

    model_config = ConfigDict(strict=True, extra="ignore")

    role: Literal["user", "assistant", "system"]
    content: str | Blocks

    @property
    def turns(self) -> list[Json]:
        """The same as messages of a chat; results of tools become messages of their own."""
        if isinstance(self.content, str):
            return [{"role": self.role, "content": self.content}]
        results = [_tool_turn(each) for each in self.content if each.get("type") == "tool_result"]
        calls = [_call(each) for each in self.content if each.get("type") == "tool_use"]
        others = [
            each for each in self.content if each.get("type") not in ("tool_result", "tool_use")
        ]
        turn: Json = {"role": self.role, "content": _content(others)}
        if calls:
            turn["tool_calls"] = calls
        return [*results, *([turn] if others or calls or not results else [])]


class MessagesRequest(TransferFields):
    """Anthropic's fields."""

    model: str
    messages: Annotated[list[MessagesTurn], Field(min_length=1, fail_fast=True)]
    max_tokens: Annotated[int, Field(ge=1)]
    system: str | Blocks | None = None
    stop_sequences: Annotated[list[StopString], Field(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    tools: Annotated[list[MessagesTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: MessagesThinking | None = None
    metadata: Json | None = None  # without effect
    learn: bool | None = None  # an extension of ours

    def in_chat(self) -> ChatRequest:
        """The same request as a chat."""
        system = [{"role": "system", "content": _text(self.system)}] if self.system else []
        choice, thinking = self.tool_choice, self.thinking
        fields: Json = {
            "model": self.model,
            "messages": [*system, *(turn for each in self.messages for turn in each.turns)],
            "max_tokens": self.max_tokens,
            "stop": self.stop_sequences or None,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "stream": self.stream,
            "tools": [tool.in_chat for tool in self.tools or ()] or None,
            "tool_choice": choice.in_chat if choice else None,
            "parallel_tool_calls": not (choice and choice.disable_parallel_tool_use),
            "thinking_token_budget": thinking.budget_tokens if thinking else None,
            "learn": self.learn,
            **self.model_dump(include=set(TransferFields.model_fields)),
        }
        return chat_of(fields)


class CountRequest(RequestBody):
    """The part of a request that has tokens."""

    model: str
    messages: Annotated[list[MessagesTurn], Field(min_length=1, fail_fast=True)]
    system: str | Blocks | None = None
    tools: Annotated[list[MessagesTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: MessagesThinking | None = None

    def in_chat(self) -> ChatRequest:
        fields = self.model_dump(exclude_unset=True, exclude={"thinking"})
        return MessagesRequest(**fields, max_tokens=1).in_chat()


def _text(content: str | list[Json]) -> str:
    if isinstance(content, str):
        return content
    parts = [part for part in content if part.get("type") not in ("thinking", "redacted_thinking")]
    for part in parts:
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise RequestError(
                f"content of type {part.get('type')!r} is not supported; send text, image, "
                "tool_use or tool_result"
            )
    return "\n".join(part["text"] for part in parts)


def _content(blocks: list[Json]) -> str | list[Json]:
    return mixed_content(blocks, images={"image": _image}, text=_text)


def _image(block: Json) -> Json:
    source = block.get("source")
    if not isinstance(source, dict):
        raise RequestError("a block of type image needs a source of base64 data")
    if source.get("type") == "url":
        return image_part(source.get("url"))
    return base64_part(source.get("data"), source.get("media_type"))


def _call(block: Json) -> Json:
    if not isinstance(block.get("name"), str) or not isinstance(block.get("input"), dict):
        raise RequestError("a block of type tool_use needs a name and an input")
    function = {"name": block["name"], "arguments": json.dumps(block["input"])}
    return {"id": str(block.get("id", "")), "type": "function", "function": function}


def _tool_turn(block: Json) -> Json:
    content = block.get("content")
    own = content if isinstance(content, str) else _content(_blocks(content or []))
    return {"role": "tool", "tool_call_id": str(block.get("tool_use_id", "")), "content": own}


def _blocks(content: object) -> list[Json]:
    if isinstance(content, list) and all(isinstance(each, dict) for each in content):
        return content
    raise RequestError("the content of a tool_result must be a text or a list of blocks")
