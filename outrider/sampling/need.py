"""Which parts of the sampling law a batch needs. Decided on the host, without torch."""

from collections.abc import Iterable

from outrider.plan.shape import Warps
from outrider.wire.sampling import MAX_NAMED, Filters, Penalties, RowSampling

_NO_PENALTIES, _NO_FILTERS = Penalties(), Filters()
_TOPS = (0, 1, 5, 20)  # most likely tokens that a step reports
_NAMED = (0, 8, MAX_NAMED)  # and tokens that requests name


def warps_of(samplings: Iterable[RowSampling], *, num_decodes: int = 0) -> Warps:
    """The parts that at least one of the rows needs; those after the decodes run prompts."""
    rows = tuple(samplings)
    scored = [row for row in rows[num_decodes:] if row.logprobs.prompt.is_asked]
    tops = [row.logprobs.top for row in rows] + [row.logprobs.prompt.top for row in scored]
    return Warps(
        noise=any(row.temperature > 0 for row in rows),
        filters=any(_is_filtered(row) for row in rows),
        penalties=any(row.penalties != _NO_PENALTIES for row in rows),
        bias=any(row.bias or has_ban(row) for row in rows),
        logprobs=any(row.logprobs.chosen or row.logprobs.top for row in rows),
        top_logprobs=_round_up(max(tops, default=0), _TOPS),
        named_logprobs=_round_up(max((len(row.logprobs.named) for row in rows), default=0), _NAMED),
        scores=bool(scored),
        trees=any(row.trace for row in rows),
    )


def has_ban(row: RowSampling) -> bool:
    """Whether its ban is an edit of logits; a grammar takes it into its masks, where it yields."""
    return bool(row.ban.tokens) and not row.grammar.is_asked


def _is_filtered(row: RowSampling) -> bool:
    """Filters keep the most likely token, so without noise they change nothing."""
    return row.temperature > 0 and row.filters != _NO_FILTERS


def _round_up(count: int, sizes: tuple[int, ...]) -> int:
    """One of few numbers, since each is a shape of its own; a row gets as many as it asked for."""
    return next((size for size in sizes if size >= count), count)
