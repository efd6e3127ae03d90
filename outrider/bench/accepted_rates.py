"""Which share of the rounds accepted a draft, by its position in the round."""

import itertools
from collections.abc import Iterable, Sequence


def accepted_rates(counts: Iterable[Sequence[int]], *, rounds: int) -> tuple[float, ...]:
    """Share of the rounds that accepted the first draft, the second, ...

    Each element of `counts` has, by position, how many rounds accepted that draft.
    """
    columns = itertools.zip_longest(*counts, fillvalue=0)
    return tuple(sum(column) / max(rounds, 1) for column in columns)


def format_rates(rates: Iterable[float]) -> str:
    """Shares below 1 in a short form: .87 .61"""
    return " ".join(f"{rate:.2f}".lstrip("0") for rate in rates)
