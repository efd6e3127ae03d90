"""Compares two answers token by token, and measures how close the logits were where they differ."""

from dataclasses import dataclass

from outrider.frontend.outputs import CompletionOutput, Logprob

NOTHING = -1  # in place of a token when an answer has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first token of an answer that differs from the plain answer."""

    position: int  # in the answer, from 0
    plain: int
    other: int
    margin: float  # logit of the plain token minus that of the other, as plain decoding saw them
    is_bound: bool  # the other token was not among the reported ones: the margin is at least this

    def __str__(self) -> str:
        sign = ">= " if self.is_bound else ""
        return (
            f"token {self.position} is {self.other} instead of {self.plain}, "
            f"logit margin {sign}{self.margin:.3g}"
        )


def first_difference(plain: CompletionOutput, tokens: list[int]) -> tuple[Difference, ...]:
    """The first difference from the plain answer; empty if there is none."""
    assert plain.logprobs is not None, "plain decoding reports them"
    for position in range(max(len(plain.token_ids), len(tokens))):
        right, other = _at(plain.token_ids, position), _at(tokens, position)
        if right != other:
            reported = plain.logprobs[position] if right != NOTHING else {}
            margin, is_bound = _margin(reported, right, other)
            return (
                Difference(
                    position=position, plain=right, other=other, margin=margin, is_bound=is_bound
                ),
            )
    return ()


def _at(tokens: list[int], position: int) -> int:
    return tokens[position] if position < len(tokens) else NOTHING


def _margin(reported: dict[int, Logprob], right: int, other: int) -> tuple[float, bool]:
    if not reported:  # the plain answer had ended
        return 0.0, True
    is_known = other in reported
    lowest = min(each.logprob for each in reported.values())
    return reported[right].logprob - (reported[other].logprob if is_known else lowest), not is_known
