"""`/v1/responses`: the request, with text and function calls."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from outrider.errors import RequestError
from outrider.frontend.prompts import TextPrompt
from outrider.frontend.sampling_params import MAX_LOGPROBS, SamplingParams
from outrider.server.http_errors import unsupported
from outrider.server.parsers.answer_parsers import AnswerParsers
from outrider.server.protocol.image_parts import image_part, mixed_content
from outrider.server.protocol.sampling_fields import RequestFields
from outrider.server.protocol.tool_choice import ToolUse, template_variables
from outrider.server.protocol.tools import (
    MAX_TOOLS,
    ChosenName,
    ChosenTool,
    FunctionTool,
    Tool,
    ToolChoice,
    check_tools,
    decode_calls,
)
from outrider.server.protocol.transfer_fields import TransferFields

_DEFAULTS = SamplingParams(max_tokens=None)
_TEXT_PARTS = ("input_text", "output_text", "text")


class InputMessage(BaseModel):
    """A message of the conversation so far."""

    model_config = ConfigDict(strict=True, extra="ignore")

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[dict[str, Any]]

    @property
    def turn(self) -> dict[str, Any]:
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": _content(self.content)}


class InputCall(BaseModel):
    """A function call of an earlier answer."""

    model_config = ConfigDict(strict=True, extra="ignore")

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str

    @property
    def call(self) -> dict[str, Any]:
        """The same call in the format of chat messages."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.call_id, "type": "function", "function": function}


class InputResult(BaseModel):
    """The result of a function call."""

    model_config = ConfigDict(strict=True, extra="ignore")

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[dict[str, Any]]

    @property
    def turn(self) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": self.call_id, "content": _content(self.output)}


class ResponseTool(FunctionTool):
    """A function. Other kinds of tools are not supported."""

    type: Literal["function"]

    @property
    def in_chat(self) -> Tool:
        fields = self.model_dump(exclude_unset=True, exclude={"type"})
        return Tool(type="function", function=FunctionTool(**fields))


class ResponseChoice(BaseModel):
    """The choice of one function."""

    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["function"]
    name: str


# Parts of an answer that a client wants. Of these, answers have logprobs only: no tool runs
# here, and reasoning is not encrypted. Clients ask for the others by habit, and get nothing more.
_LOGPROBS = "message.output_text.logprobs"
Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
]


class ResponsesRequest(RequestFields, TransferFields):
    """OpenAI's fields and the extensions."""

    input: str | Annotated[list[InputMessage | InputCall | InputResult], Field(fail_fast=True)]
    instructions: str | None = None
    max_output_tokens: int | None = None
    text: dict[str, Any] | None = None
    tools: Annotated[list[ResponseTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponseChoice | None = None
    parallel_tool_calls: bool | None = None
    include: Annotated[list[Includable], Field(fail_fast=True)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None  # an extension
    # accepted, without effect here
    reasoning: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    max_tool_calls: int | None = None

    def check(self) -> None:
        """Refuse fields that do not fit together."""
        if self.n not in (None, 1):
            raise unsupported("n", "n other than 1")
        check_tools(self.tool_use.tools, self.tool_use.choice)
        if self.wants_logprobs and self.tool_use.may_call:
            raise RequestError("logprobs are those of a text; use tool_choice none")

    def params(self, parsers: AnswerParsers, prompt: TextPrompt) -> SamplingParams:
        length = self.max_tokens if self.max_output_tokens is None else self.max_output_tokens
        if length == 0:
            raise RequestError("a response has at least one token; raise max_output_tokens")
        structured = self.structure((self.text or {}).get("format"))
        return self.sampling(
            _DEFAULTS,
            max_tokens=length,
            logprobs=(self.top_logprobs or 0) if self.wants_logprobs else None,
            structured=parsers.structure(structured, self.tool_use, prompt),
            **parsers.special_tokens(self.tool_use, self.skip_special_tokens),
        )

    @property
    def wants_logprobs(self) -> bool:
        return _LOGPROBS in (self.include or ()) or bool(self.top_logprobs)

    @property
    def tool_use(self) -> ToolUse:
        choice: ToolChoice | None
        if isinstance(self.tool_choice, ResponseChoice):
            choice = ChosenTool(type="function", function=ChosenName(name=self.tool_choice.name))
        else:
            choice = self.tool_choice
        return ToolUse(
            tools=[tool.in_chat for tool in self.tools or ()],
            choice=choice,
            is_parallel=self.parallel_tool_calls is not False,
        )

    @property
    def variables(self) -> dict[str, Any]:
        """The variables of the chat template, besides the messages."""
        return template_variables(self.tool_use.tools, self.chat_template_kwargs)

    @property
    def turns(self) -> list[dict[str, Any]]:
        turns = [{"role": "system", "content": self.instructions}] if self.instructions else []
        if isinstance(self.input, str):
            return [*turns, {"role": "user", "content": self.input}]
        for item in self.input:
            if isinstance(item, InputCall):
                _add_call(turns, item)
            else:
                turns.append(item.turn)
        return [decode_calls(turn) for turn in turns]


def _add_call(turns: list[dict[str, Any]], item: InputCall) -> None:
    """Add a call to the message before it: a chat has all calls of a message inside it."""
    if not turns or turns[-1]["role"] != "assistant":
        turns.append({"role": "assistant", "content": ""})
    turns[-1].setdefault("tool_calls", []).append(item.call)


def _content(content: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Of a message or of the result of a function."""
    if isinstance(content, str):
        return content
    return mixed_content(content, images={"input_image": _image}, text=_text)


def _image(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("file_id"):
        raise RequestError("images have no file_id here; send image_url with a data: URL")
    return image_part(part.get("image_url"))


def _text(content: list[dict[str, Any]]) -> str:
    for part in content:
        if part.get("type") not in _TEXT_PARTS or not isinstance(part.get("text"), str):
            raise RequestError(
                "input content may only hold parts of type input_text and input_image"
            )
    return "\n".join(part["text"] for part in content)
