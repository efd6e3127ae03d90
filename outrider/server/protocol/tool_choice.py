"""The tools of a request, its choice among them, and how its answer is read."""

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
from outrider.server.protocol.tools import ChosenTool, Tool, ToolChoice, call_schema


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The tools of one request, its choice among them, and whether several may be called."""

    tools: Sequence[Tool]
    choice: ToolChoice | None
    is_parallel: bool

    @property
    def may_call(self) -> bool:
        return bool(self.tools) and self.choice != "none"

    @property
    def must_call(self) -> bool:
        """Whether the answer is forced to be a call."""
        return self.choice == "required" or isinstance(self.choice, ChosenTool)

    def reader(self) -> AnswerReader:
        """A reader that finds the tool calls in the text of one answer."""
        if self.must_call:
            return ForcedReader()
        if not self.may_call:
            return PlainReader()
        names = [tool.function.name for tool in self.tools]
        return ToolBlockReader(names, most=None if self.is_parallel else 1)

    def structured(self, requested: Structured) -> Structured:
        """The grammar of the answer: the requested one, or that of a forced call."""
        if requested is not None and self.may_call:
            raise RequestError(
                "tools and a form of the answer exclude each other; use tool_choice none"
            )
        return {"json": call_schema(self.tools, self.choice)} if self.must_call else requested

    def special_tokens(self, skip_special_tokens: bool | None) -> dict[str, bool]:
        """Show special tokens where calls are read: the tags of a call may be special tokens."""
        is_read = self.may_call and not self.must_call and skip_special_tokens is None
        return {"skip_special_tokens": False} if is_read else {}


def template_variables(
    tools: Sequence[Tool], more: Mapping[str, Any] | None, *, opens_answer: bool = True
) -> dict[str, Any]:
    """The variables of a chat template, besides the messages."""
    if taken := {"messages", "tools"} & (more or {}).keys():
        raise RequestError(f"chat_template_kwargs cannot have {min(taken)!r}; use the field")
    return {
        "add_generation_prompt": opens_answer,
        "tools": [tool.model_dump(exclude_unset=True) for tool in tools],
        **(more or {}),
    }
