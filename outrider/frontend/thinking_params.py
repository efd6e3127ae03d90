"""A thinking budget: how many tokens an answer may reason before its reasoning is ended."""

from dataclasses import dataclass

from outrider.errors import RequestError
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer
from outrider.wire.row_sampling import ThinkingBudget

_UNBOUNDED = 2**31  # tokens; no context is as long


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """The tags around reasoning, and the budget. Each tag must be one token of the model."""

    budget: int  # tokens of the output, counted from its begin
    open_tag: str
    close_tag: str
    is_open: bool  # whether the prompt has opened the reasoning


def resolve_thinking(
    thinking: Thinking | None, tokenizer: Tokenizer | NoTokenizer, *, prompt_len: int
) -> ThinkingBudget:
    """The budget in tokens and positions."""
    if thinking is None:
        return ThinkingBudget()
    opens, closes = (
        tuple(tokenizer.encode(tag, add_special=False))
        for tag in (thinking.open_tag, thinking.close_tag)
    )
    if len(opens) != 1 or len(closes) != 1:
        raise RequestError(
            f"a thinking budget needs a model that has {thinking.open_tag} and "
            f"{thinking.close_tag} as one token each; leave thinking_token_budget out"
        )
    return ThinkingBudget(
        opens=opens[0],
        closes=closes[0],
        is_open=thinking.is_open,
        until=prompt_len + min(thinking.budget, _UNBOUNDED),
    )
