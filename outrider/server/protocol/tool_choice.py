"""What a request says about calls: the functions there are, and what becomes of an answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.errors import RequestError
from outrider.frontend.structured_params import Structured
from outrider.server.protocol.tool_call_parser import (
    AnswerReader,
    ForcedReader,
    PlainReader,
    ToolBlockReader,
)
from outrider.server.protocol.tools import Tool, ToolChoice, call_schema, must_call


@dataclass(frozen=True, slots=True, kw_only=True)
class Calling:
    """The tools of one request, its choice among them, and how many it may call at once."""

    tools: Sequence[Tool]
    choice: ToolChoice | None
    is_parallel: bool

    @property
    def may_call(self) -> bool:
        return bool(self.tools) and self.choice != "none"

    @property
    def must_call(self) -> bool:
        return must_call(self.choice)

    def reader(self) -> AnswerReader:
        """What finds the calls in the text of one answer."""
        if self.must_call:
            return ForcedReader()
        if not self.may_call:
            return PlainReader()
        names = [tool.function.name for tool in self.tools]
        return ToolBlockReader(names, most=None if self.is_parallel else 1)

    def form(self, asked: Structured) -> Structured:
        """The form that was asked for, or that of a call; a call has no other."""
        if asked is not None and self.may_call:
            raise RequestError(
                "tools and a form of the answer exclude each other; use tool_choice none"
            )
        return {"json": call_schema(self.tools, self.choice)} if self.must_call else asked

    def spelling(self, skip_special_tokens: bool | None) -> dict[str, bool]:
        """Some models have special tokens for the tags of a call, which must be seen to be read."""
        is_read = self.may_call and not self.must_call and skip_special_tokens is None
        return {"skip_special_tokens": False} if is_read else {}


def template_variables(
    tools: Sequence[Tool], more: Mapping[str, Any] | None, *, opens_answer: bool = True
) -> dict[str, Any]:
    """What a chat template gets beside the messages."""
    if taken := {"messages", "tools"} & (more or {}).keys():
        raise RequestError(f"chat_template_kwargs cannot have {min(taken)!r}; use the field")
    return {
        "add_generation_prompt": opens_answer,
        "tools": [tool.model_dump(exclude_unset=True) for tool in tools],
        **(more or {}),
    }
