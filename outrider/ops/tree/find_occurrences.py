"""Earlier occurrences of the last tokens of texts, and what followed them."""

from dataclasses import dataclass

import torch
from torch.nn import functional

from outrider.ops.compiled.why_not_compiled import is_compiled

_COMPILED = "outrider.ops.compiled.text_matches"

# Measured offline on 120 texts of SmolLM2-135M (summaries, code, maths, chat, greedy and sampled):
# more occurrences, other costs and longer matches change the accept length by less than 1%.
OCCURRENCES = 8  # compared at most


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramMatch:
    """How many of the last tokens must match, and how many are compared."""

    least: int  # at least 1
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrences:
    """Earlier occurrences of a text's last tokens: longest match first, of equals the latest."""

    ends: torch.Tensor  # [rows, occurrences] position of the last token of the match
    matched: torch.Tensor  # [rows, occurrences] tokens that match; 0 where there is no occurrence


def find_occurrences(
    text: torch.Tensor,  # [rows, width] int32
    lengths: torch.Tensor,  # [rows] position of the last token
    match: NgramMatch,
) -> Occurrences:
    """Earlier occurrences of the last tokens, compared one by one backwards from every position."""
    if is_compiled(text, _COMPILED):
        from outrider.ops.tree.find_occurrences_compiled import find_occurrences_compiled

        return find_occurrences_compiled(text, lengths, match)
    return find_occurrences_reference(text, lengths, match)


def find_occurrences_reference(
    text: torch.Tensor,  # [rows, width]
    lengths: torch.Tensor,  # [rows]
    match: NgramMatch,
) -> Occurrences:
    """The same in plain torch."""
    width, margin = text.shape[1], match.most - 1
    padded = functional.pad(text, (margin, 0), value=-1)  # a comparison may start before the text
    back = torch.arange(match.most, device=text.device)
    last = padded.gather(1, margin + lengths[:, None] - back)  # [rows, most] the last token first
    is_equal = text == last[:, :1]  # [rows, width]
    matched = is_equal.int()
    for i in range(1, match.most):
        is_equal = is_equal & (padded[:, margin - i : margin - i + width] == last[:, i : i + 1])
        matched = matched + is_equal
    position = torch.arange(width, device=text.device)
    is_found = (matched >= match.least) & (position < lengths[:, None])
    rank = torch.where(is_found, matched * width + position, 0)
    best = rank.topk(min(OCCURRENCES, width), dim=1).values
    return Occurrences(ends=best % width, matched=best // width)


def follow(
    text: torch.Tensor,  # [rows, width]
    occurrences: Occurrences,
    lengths: torch.Tensor,  # [rows]
    steps: int,
) -> torch.Tensor:  # [rows, occurrences, steps]
    """The tokens after each occurrence. An occurrence `p` tokens back is followed by `p` tokens;
    after those they repeat, as in a text of period `p`.
    """
    period = (lengths[:, None] - occurrences.ends).clamp_min(1)[:, :, None]
    step = torch.arange(steps, device=text.device)
    index = (occurrences.ends + 1)[:, :, None] + step % period
    return text.gather(1, index.flatten(1)).view_as(index).long()
