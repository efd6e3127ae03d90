"""`/v1/chat/completions`: the request, and the answer, whole or in chunks."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from outrider.errors import RequestError
from outrider.frontend.prompts import TextPrompt
from outrider.frontend.sampling_params import MAX_LOGPROBS, SamplingParams
from outrider.server.parsers.answer_parsers import NO_PARSERS, AnswerParsers
from outrider.server.protocol.logprobs_protocol import ChatLogprobs, PromptReport
from outrider.server.protocol.round_traces import Round
from outrider.server.protocol.sampling_fields import ReportFields
from outrider.server.protocol.tool_choice import ToolUse, template_variables
from outrider.server.protocol.tools import (
    ToolCall,
    ToolCallDelta,
    ToolChoice,
    Tools,
    check_tools,
    decode_calls,
)
from outrider.server.protocol.usage_fields import AnswerMetrics, UsageFields

_DEFAULTS = SamplingParams(max_tokens=None)
_NO_PROMPT = TextPrompt("")


class ChatMessage(BaseModel):
    """A message. The chat template gets all of its fields."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: str
    content: str | list[dict[str, Any]] | None = None

    @property
    def turn(self) -> dict[str, Any]:
        return decode_calls(self.model_dump(exclude_unset=True))


class PredictionPart(BaseModel):
    """A part of a predicted text."""

    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["text"]
    text: str


class Prediction(BaseModel):
    """The text that an answer is expected to resemble, as when a file is edited."""

    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["content"]
    content: str | Annotated[list[PredictionPart], Field(fail_fast=True)]

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatRequest(ReportFields):
    """OpenAI's fields and the extensions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    response_format: dict[str, Any] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    # extensions
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    prediction: Prediction | None = None  # OpenAI's predicted outputs
    trace: bool | None = None  # report the draft tree of every round
    include_reasoning: bool | None = None  # vLLM's: false leaves the reasoning out
    separate_reasoning: bool | None = None  # SGLang's: false leaves it in the content
    thinking_token_budget: int | None = None  # vLLM's: tokens after which reasoning is ended
    # accepted, without effect here
    modalities: list[Literal["text"]] | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None

    def check(self) -> None:
        """Refuse fields that do not fit together."""
        self.check_reports()
        check_tools(self.tools or (), self.tool_choice)
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs to be true")

    def params(
        self, parsers: AnswerParsers = NO_PARSERS, prompt: TextPrompt = _NO_PROMPT
    ) -> SamplingParams:
        newer, older = self.max_completion_tokens, self.max_tokens
        if 0 in (newer, older):
            raise RequestError("a chat answers with at least one token; raise max_tokens")
        structured = self.structure(self.response_format)
        return self.sampling(
            _DEFAULTS,
            return_hidden_states=self.hidden_states_mode,
            prompt_logprobs=self.prompt_logprobs,
            prediction=self.prediction.text if self.prediction else "",
            max_tokens=older if newer is None else newer,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            trace=bool(self.trace),
            thinking=parsers.thinking(self.thinking_token_budget, prompt),
            structured=parsers.structure(structured, self.tool_use, prompt),
            **parsers.special_tokens(self.tool_use, self.skip_special_tokens),
        )

    @property
    def shows_reasoning(self) -> bool:
        return self.include_reasoning is not False

    @property
    def tool_use(self) -> ToolUse:
        return ToolUse(
            tools=self.tools or (),
            choice=self.tool_choice,
            is_parallel=self.parallel_tool_calls is not False,
        )

    @property
    def turns(self) -> list[dict[str, Any]]:
        return [message.turn for message in self.messages]

    @property
    def variables(self) -> dict[str, Any]:
        """The variables of the chat template, besides the messages."""
        continues = bool(self.continue_final_message)
        opens = not continues if self.add_generation_prompt is None else self.add_generation_prompt
        variables = template_variables(
            self.tools or (), self.chat_template_kwargs, opens_answer=opens
        )
        return {**variables, "continue_final_message": continues}


def chat_of(fields: dict[str, Any]) -> ChatRequest:
    """A chat from the fields of another API, which are checked here."""
    try:
        return ChatRequest(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise RequestError(f"{place}: {first['msg']}") from error


class AnswerMessage(BaseModel):
    """The answer of one choice."""

    role: Literal["assistant"]
    content: str | None  # null if there are only calls
    refusal: None
    reasoning_content: str | None = None  # of a model with a reasoning parser
    tool_calls: list[ToolCall] | None = None  # if there are any


class ChatChoice(BaseModel):
    """One answer.

    `stop_reason` is vLLM's extension. `matched_stop` is SGLang's, and also names an end of
    sequence. `seed` is ours: sent back, it repeats this answer.
    """

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: int | str | None
    matched_stop: int | str | None
    seed: int
    rounds: list[Round] | None = None  # when requested
    token_ids: list[int] | None = None  # when requested
    # When requested: the last one, or with "all" a list of them.
    hidden_states: list[Any] | None = None


class ChatAnswer(BaseModel):
    """The whole answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageFields | None  # null if a prefill server has not read the prompt
    metrics: AnswerMetrics | None = None  # when requested
    kv_transfer_params: dict[str, Any] | None = None  # of a prefill server
    prompt_logprobs: PromptReport | None = None  # when requested
    prompt_token_ids: list[int] | None = None  # when requested


class ChatDelta(BaseModel):
    """The new part of a choice; the first delta has the role."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChunkChoice(BaseModel):
    """One choice of a chunk. Only its last chunk has a finish reason, the stop and the seed."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None = None
    matched_stop: int | str | None = None
    seed: int | None = None
    rounds: list[Round] | None = None  # when requested: those that emitted the delta
    token_ids: list[int] | None = None  # when requested


class ChatChunk(BaseModel):
    """One event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: UsageFields | None = None  # if requested: null before the last chunk
    metrics: AnswerMetrics | None = None
    prompt_token_ids: list[int] | None = None  # when requested, in the first chunk
