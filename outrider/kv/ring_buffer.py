"""How long a ring must be. Slot s of row r in a ring of length n is r * n + s. No torch."""


def ring_length(window: int, nodes: int) -> int:
    """The shortest ring that survives the rejection of all but the first of `nodes` tokens.

    The next step starts at L and reads [L - window + 1, L) from the ring; what it brings itself it
    reads from the step. The step before wrote up to L + nodes - 2, and a ring of length n forgets
    L + nodes - 2 - n: below L - window + 1 if n is at least window + nodes - 2.
    """
    return max(1, window + nodes - 2)
