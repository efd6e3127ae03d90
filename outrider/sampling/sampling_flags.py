"""Which parts of the sampling law a row needs, and rows together. Decided without torch."""

from collections.abc import Sequence
from dataclasses import fields, replace
from operator import attrgetter

from outrider.step.shape import SamplingFlags
from outrider.wire.row_sampling import MAX_NAMED, Filters, Penalties, RowSampling

_NO_PENALTIES, _NO_FILTERS = Penalties(), Filters()
_NAMES = tuple(field.name for field in fields(SamplingFlags))
_PARTS = attrgetter(*_NAMES)
_TOPS = (0, 1, 5, 20)  # most likely tokens that a step reports
_NAMED = (0, 8, MAX_NAMED)  # and tokens that requests name


def decode_flags(row: RowSampling) -> SamplingFlags:
    """The parts that this row needs while it decodes."""
    return SamplingFlags(
        noise=row.temperature > 0,
        filters=_is_filtered(row),
        penalties=row.penalties != _NO_PENALTIES,
        bias=bool(row.bias) or has_ban(row),
        logprobs=row.logprobs.chosen or row.logprobs.top > 0,
        top_logprobs=_round_up(row.logprobs.top, _TOPS),
        named_logprobs=_round_up(len(row.logprobs.named), _NAMED),
        trees=row.trace,
    )


def prompt_flags(row: RowSampling) -> SamplingFlags:
    """The parts that it needs while its prompt runs, which may be scored as well."""
    flags, asked = decode_flags(row), row.logprobs.prompt
    if not asked.is_wanted:
        return flags
    top = _round_up(max(row.logprobs.top, asked.top), _TOPS)
    return replace(flags, scores=True, top_logprobs=top)


def joined_flags(needs: Sequence[SamplingFlags]) -> SamplingFlags:
    """What at least one of them names, and the largest of their counts."""
    if len(needs) < 2:  # the rule: rows of one kind
        return needs[0] if needs else SamplingFlags()
    parts = zip(*map(_PARTS, needs), strict=True)
    return SamplingFlags(**{name: max(part) for name, part in zip(_NAMES, parts, strict=True)})


def has_ban(row: RowSampling) -> bool:
    """Whether its ban is an edit of logits; a grammar takes it into its masks, where it yields."""
    return bool(row.ban.tokens) and not row.grammar.is_wanted


def _is_filtered(row: RowSampling) -> bool:
    """Filters keep the most likely token, so without noise they change nothing."""
    return row.temperature > 0 and row.filters != _NO_FILTERS


def _round_up(count: int, sizes: tuple[int, ...]) -> int:
    """One of few numbers, since each is a shape of its own; a row gets as many as it asked for."""
    return next((size for size in sizes if size >= count), count)
