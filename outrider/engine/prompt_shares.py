"""How the prompts in progress share a step's tokens. Pure functions over counts."""

from outrider.engine.request import Request


def pick_prompts(remaining: dict[Request, int], most: int) -> dict[Request, int]:
    """At most `most` prompts: half of them by precedence, the rest by how few tokens remain.

    By precedence alone a few long prompts would delay all short ones; by remaining tokens, the
    reverse. `remaining` is in order of precedence.
    """
    by_rank = list(remaining)[: max(1, most // 2)]
    others = [request for request in remaining if request not in by_rank]
    by_remaining = sorted(others, key=lambda request: remaining[request])[: most - len(by_rank)]
    return {request: remaining[request] for request in [*by_rank, *by_remaining]}


def share_budget(remaining: dict[Request, int], budget: int) -> dict[Request, int]:
    """Tokens for each prompt: equal shares, and what one does not need goes to the others."""
    shares: dict[Request, int] = {}
    ascending = sorted(remaining, key=lambda request: remaining[request])
    for index, request in enumerate(ascending):
        share = min(remaining[request], -(-budget // (len(ascending) - index)))
        if share > 0:
            shares[request] = share
            budget -= share
    return shares
