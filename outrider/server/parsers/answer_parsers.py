"""The parsers by name: --reasoning-parser and --tool-call-parser."""

from dataclasses import dataclass, replace
from typing import Literal

from outrider.errors import ConfigError, RequestError
from outrider.frontend.prompts import TextPrompt, TokenPrompt
from outrider.frontend.structured_params import Structured
from outrider.frontend.thinking_params import Thinking
from outrider.server.parsers.call_block import CallFormat
from outrider.server.parsers.deepseek_calls import DEEPSEEK
from outrider.server.parsers.glm_calls import GLM
from outrider.server.parsers.harmony_reader import HarmonyReader
from outrider.server.parsers.hermes_calls import HERMES
from outrider.server.parsers.llama3_calls import LLAMA3
from outrider.server.parsers.mistral_calls import MISTRAL
from outrider.server.parsers.pythonic_calls import PYTHONIC
from outrider.server.parsers.reasoned_structure import structure_after
from outrider.server.parsers.reasoning_reader import ReasoningReader, ReasoningTags
from outrider.server.parsers.strict_calls import strict_calls
from outrider.server.protocol.tool_call_parser import (
    AnswerReader,
    ForcedReader,
    PlainReader,
    ToolBlockReader,
)
from outrider.server.protocol.tool_choice import ToolUse

HARMONY: Literal["harmony"] = "harmony"  # reasoning and calls of gpt-oss have one parser

_THINK = ReasoningTags()
# The names are vLLM's and SGLang's, with _ for -.
REASONING: dict[str, ReasoningTags | Literal["harmony"]] = {
    "deepseek_r1": ReasoningTags(is_implied=True),
    "qwen3": _THINK,
    "glm45": _THINK,
    "glm": _THINK,
    "gpt_oss": HARMONY,
    "openai_gptoss": HARMONY,
}
CALLS: dict[str, CallFormat | Literal["harmony"]] = {
    "hermes": HERMES,
    "qwen": HERMES,
    "qwen25": HERMES,
    "llama3_json": LLAMA3,
    "llama3": LLAMA3,
    "llama4_pythonic": PYTHONIC,
    "pythonic": PYTHONIC,
    "mistral": MISTRAL,
    "deepseek_v3": DEEPSEEK,
    "deepseekv3": DEEPSEEK,
    "deepseek_v31": DEEPSEEK,
    "deepseekv31": DEEPSEEK,
    "glm45": GLM,
    "glm": GLM,
    "gpt_oss": HARMONY,
    "openai": HARMONY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerParsers:
    """How the answers of the served model are read."""

    reasoning: ReasoningTags | Literal["harmony", ""] = ""  # empty: answers have no reasoning
    calls: CallFormat | Literal["harmony"] = HERMES

    @property
    def is_harmony(self) -> bool:
        return HARMONY in (self.reasoning, self.calls)

    @property
    def tags(self) -> ReasoningTags | None:
        """The tags around reasoning, if the model writes such tags."""
        return self.reasoning if isinstance(self.reasoning, ReasoningTags) else None

    def chosen(self, *, separates: bool) -> "AnswerParsers":
        """The parsers of one request, which may want its reasoning in the content."""
        return self if separates else replace(self, reasoning="")

    def structure(self, requested: Structured, tool_use: ToolUse, prompt: TextPrompt) -> Structured:
        """The form of an answer: the requested one, or that of calls, after its reasoning."""
        structured = tool_use.structured(requested)
        if structured is None and tool_use.may_call and self.calls is HERMES:
            structured = strict_calls(tool_use.tools)
        if structured is None:
            return None
        if self.is_harmony:
            raise RequestError("structured output is not supported with the harmony format yet")
        if self.tags is None:
            return structured
        return structure_after(structured, self.tags, is_open=self.tags.is_open(prompt))

    def thinking(self, budget: int | None, prompt: TextPrompt) -> Thinking | None:
        """A bound on the reasoning of an answer; -1 and null mean none."""
        if budget in (None, -1):
            return None
        if self.tags is None or budget is None or budget < 0:
            raise RequestError(
                "thinking_token_budget must be at least 0, and needs a server with a "
                "--reasoning-parser other than gpt_oss"
            )
        return Thinking(
            budget=budget,
            open_tag=self.tags.open,
            close_tag=self.tags.close,
            is_open=self.tags.is_open(prompt),
        )

    def reader(self, tool_use: ToolUse, prompt: TextPrompt | TokenPrompt) -> AnswerReader:
        """A reader of one answer to a prompt."""
        names = [tool.function.name for tool in tool_use.tools] if tool_use.may_call else []
        if self.is_harmony:
            return HarmonyReader(names)
        after = self._after_reasoning(tool_use, names)
        if self.tags is None:
            return after
        return ReasoningReader(self.tags, after, is_open=self.tags.is_open(prompt))

    def _after_reasoning(self, tool_use: ToolUse, names: list[str]) -> AnswerReader:
        if tool_use.must_call:
            return ForcedReader()
        if not names:
            return PlainReader()
        assert isinstance(self.calls, CallFormat)
        most = None if tool_use.is_parallel else 1
        return ToolBlockReader(names, most=most, format=self.calls)

    def special_tokens(
        self, tool_use: ToolUse, skip_special_tokens: bool | None
    ) -> dict[str, bool]:
        """Show special tokens where tags are read: they may be special tokens."""
        is_read = bool(self.reasoning) or self.is_harmony
        is_read = is_read or (tool_use.may_call and not tool_use.must_call)
        return {"skip_special_tokens": False} if is_read and skip_special_tokens is None else {}


NO_PARSERS = AnswerParsers()


def find_parsers(*, reasoning: str, calls: str) -> AnswerParsers:
    """The parsers of these names; empty names mean the defaults."""
    reasoning, calls = (name.replace("-", "_").lower() for name in (reasoning, calls))
    for flag, name, known in (
        ("--reasoning-parser", reasoning, REASONING),
        ("--tool-call-parser", calls, CALLS),
    ):
        if name and name not in known:
            raise ConfigError(f"{flag} {name} is unknown; use one of {', '.join(sorted(known))}")
    return AnswerParsers(
        reasoning=REASONING[reasoning] if reasoning else "",
        calls=CALLS[calls] if calls else HERMES,
    )
