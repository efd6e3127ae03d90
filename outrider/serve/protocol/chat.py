"""`/v1/chat/completions`: what comes in, and what goes out whole or in chunks."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from outrider.api.params import MAX_LOGPROBS, SamplingParams
from outrider.errors import RequestError
from outrider.serve.protocol.logprobs import ChatLogprobs
from outrider.serve.protocol.rounds import Round
from outrider.serve.protocol.sampling import AskFields, form_of, refuse
from outrider.serve.protocol.shared import CallMetrics, Usage

_NOT_YET = ("tools", "functions", "audio", "prediction", "web_search_options")


class ChatMessage(BaseModel):
    """A turn. The model's template sees all of its fields."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: str
    content: str | list[dict[str, Any]] | None = None


class ChatRequest(AskFields):
    """OpenAI's fields, and the extensions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    response_format: dict[str, Any] | None = None
    # extensions
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    trace: bool | None = None  # tell how every token came
    # refused when they ask for something
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    function_call: Any = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
    modalities: list[Literal["text"]] | None = None
    # accepted, without effect here
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None

    def check(self) -> None:
        """Refuse what is not there yet, by name."""
        refuse(self, _NOT_YET)
        for name in ("tool_choice", "function_call"):
            if getattr(self, name) not in (None, "none", "auto"):
                refuse(self, (name,))
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs to be true")

    def params(self) -> SamplingParams:
        newer, older = self.max_completion_tokens, self.max_tokens
        return self.sampling(
            SamplingParams(max_tokens=None),
            max_tokens=older if newer is None else newer,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            trace=bool(self.trace),
            structured=form_of(self.response_format, self.structured_outputs),
        )

    @property
    def turns(self) -> list[dict[str, Any]]:
        return [message.model_dump(exclude_unset=True) for message in self.messages]

    @property
    def variables(self) -> dict[str, Any]:
        """What the template gets beside the messages."""
        own = {"add_generation_prompt": self.add_generation_prompt is not False}
        return own | (self.chat_template_kwargs or {})


class AnswerMessage(BaseModel):
    """The answer of one choice."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(BaseModel):
    """One answer. `stop_reason` is vLLM's extension, `seed` ours: it repeats this answer."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: int | str | None
    seed: int
    rounds: list[Round] | None = None  # when asked


class ChatAnswer(BaseModel):
    """The whole answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    metrics: CallMetrics | None = None  # when asked


class ChatDelta(BaseModel):
    """What a choice gained; the first says whose turn it is."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(BaseModel):
    """One choice of a chunk; its last one has the reason, the stop and the seed."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None = None
    seed: int | None = None
    rounds: list[Round] | None = None  # when asked: those that emitted the delta


class ChatChunk(BaseModel):
    """One event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None  # null until the last, where it was asked for
    metrics: CallMetrics | None = None
