"""How many tokens a round emits, and how often each of its drafts is accepted."""

USUAL_RATE = 0.65  # share of a head's drafts that is accepted, before the text tells


def emitted_at(accept_rate: float, most: int) -> float:
    """Tokens of a round whose drafts are accepted at this rate each."""
    return sum(accept_rate**depth for depth in range(most))


def accept_rate_of(emitted: float, most: int) -> float:
    """The rate at which every draft of a chain would be accepted, by what a round emits."""
    low, high = 0.0, 1.0
    for _ in range(10):  # bisection
        middle = (low + high) / 2
        if emitted_at(middle, most) < emitted:
            low = middle
        else:
            high = middle
    return (low + high) / 2
