"""Which parts of the sampling law a batch needs. Decided on the host, without torch."""

from collections.abc import Iterable

from outrider.plan.shape import Warps
from outrider.wire.sampling import Filters, Penalties, RowSampling

_NO_PENALTIES, _NO_FILTERS = Penalties(), Filters()
_TOPS = (0, 1, 5, 20)  # most likely tokens that a step reports


def warps_of(samplings: Iterable[RowSampling]) -> Warps:
    """The parts that at least one of the rows needs."""
    rows = tuple(samplings)
    return Warps(
        noise=any(row.temperature > 0 for row in rows),
        filters=any(_is_filtered(row) for row in rows),
        penalties=any(row.penalties != _NO_PENALTIES for row in rows),
        bias=any(row.bias or has_ban(row) for row in rows),
        logprobs=any(row.logprobs.chosen or row.logprobs.top for row in rows),
        top_logprobs=_round_up(max((row.logprobs.top for row in rows), default=0)),
        trees=any(row.trace for row in rows),
    )


def has_ban(row: RowSampling) -> bool:
    """Whether its ban is an edit of logits; a grammar takes it into its masks, where it yields."""
    return bool(row.ban.tokens) and not row.grammar.is_asked


def _is_filtered(row: RowSampling) -> bool:
    """Filters keep the most likely token, so without noise they change nothing."""
    return row.temperature > 0 and row.filters != _NO_FILTERS


def _round_up(top: int) -> int:
    """One of few numbers, since each is a shape of its own; a row gets as many as it asked for."""
    return next((size for size in _TOPS if size >= top), top)
