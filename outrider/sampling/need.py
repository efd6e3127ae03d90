"""Which parts of the sampling law a batch needs. Decided on the host, without torch."""

from collections.abc import Iterable

from outrider.plan.shape import Warps
from outrider.wire.sampling import Filters, Penalties, RowSampling

_NO_PENALTIES, _NO_FILTERS = Penalties(), Filters()


def warps_of(samplings: Iterable[RowSampling]) -> Warps:
    """The parts that at least one of the rows needs."""
    rows = tuple(samplings)
    return Warps(
        noise=any(row.temperature > 0 for row in rows),
        filters=any(_is_filtered(row) for row in rows),
        penalties=any(row.penalties != _NO_PENALTIES for row in rows),
        bias=any(row.bias or row.ban.tokens for row in rows),
        logprobs=any(row.logprobs.chosen or row.logprobs.top for row in rows),
        top_logprobs=max((row.logprobs.top for row in rows), default=0),
    )


def _is_filtered(row: RowSampling) -> bool:
    """Filters keep the most likely token, so without noise they change nothing."""
    return row.temperature > 0 and row.filters != _NO_FILTERS
