"""The tools of a request, and its choice among them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.errors import RequestError
from outrider.frontend.structured_params import Structured
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

    def structured(self, requested: Structured) -> Structured:
        """The grammar of the answer: the requested one, or that of a forced call."""
        if requested is not None and self.may_call:
            raise RequestError(
                "tools and a form of the answer exclude each other; use tool_choice none"
            )
        return {"json": call_schema(self.tools, self.choice)} if self.must_call else requested


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
