"""Hashes of the tokens before a place, by which the places of finished texts are sorted."""

import torch

LONGEST_MATCH = 24  # tokens that are compared
CONTEXTS = (3, 6, 12)  # tokens of a looked-up context: the shorter ones find what the longest miss
END = -1  # after every text, so that no match and no draft leads from one text to another
NO_KEY = torch.iinfo(torch.int64).max
_ODD, _MIXED = -7046029254386353131, -4658895280553007687


def key_factors(device: torch.device) -> torch.Tensor:  # [longest context] int64
    """What the tokens of a context are multiplied by, the latest first."""
    numbers = torch.arange(1, CONTEXTS[-1] + 1, device=device)
    factors = (2 * numbers + 1) * _ODD  # odd, so no bit of a token is lost
    return (factors ^ (factors >> 31)) * _MIXED | 1


def context_keys(
    last: torch.Tensor,  # [n, LONGEST_MATCH] tokens before a place, the latest first
    owners: torch.Tensor,  # [n]
) -> torch.Tensor:  # [n, contexts]
    """A hash of each context and its owner; `NO_KEY` for one that reaches over an end."""
    used = last[:, : CONTEXTS[-1]]
    sums = ((used + 1) * key_factors(last.device)).cumsum(1)
    is_whole = (used != END).cumprod(1).bool()
    sums = (sums + owners[:, None]).where(is_whole, NO_KEY)
    return torch.stack([sums[:, length - 1] for length in CONTEXTS], dim=1)
