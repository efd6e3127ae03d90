"""Tells a wrong token from two tokens that rounding alone decides between."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from support.reference import choose

from outrider.wire.submission import Submission

_TRIALS = 8
_NOISE = 3e-6  # relative, of every weight: about what another order of float32 sums does


def is_near_tie(
    theirs: Any, submission: Submission, got: Sequence[int], right: Sequence[int]
) -> bool:
    """Whether weights that differ in their last bits choose both tokens where answers part."""
    parted = next((i for i, (a, b) in enumerate(zip(got, right, strict=False)) if a != b), None)
    if parted is None:
        return False
    text = [*submission.prompt, *right[:parted]]
    chosen = {_next_token(_disturbed(theirs, trial), submission, text) for trial in range(_TRIALS)}
    return {got[parted], right[parted]} <= chosen


def _next_token(model: Any, submission: Submission, text: list[int]) -> int:
    with torch.no_grad():
        logits = model(torch.tensor([text])).logits[0, -1].double().numpy()
    return choose(logits, submission.sampling, text, len(submission.prompt))


def _disturbed(model: Any, trial: int) -> Any:
    generator = torch.Generator().manual_seed(trial)
    disturbed = copy.deepcopy(model)
    with torch.no_grad():
        for weight in disturbed.parameters():
            weight *= 1 + _NOISE * torch.randn(weight.shape, generator=generator)
    return disturbed
