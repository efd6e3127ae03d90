"""Slots of a ring buffer per row. With n of them, slot s of row r is r * n + s. No torch."""


def ring_length(window: int, nodes: int) -> int:
    """The shortest ring buffer that allows all but the first of `nodes` tokens to be rejected.

    The next step starts at L and reads [L - window + 1, L) from the ring buffer; its own tokens it
    reads from the step. The step before wrote up to L + nodes - 2, and so overwrote positions up to
    L + nodes - 2 - n. These are below L - window + 1 if n is at least window + nodes - 2.
    """
    return max(1, window + nodes - 2)
