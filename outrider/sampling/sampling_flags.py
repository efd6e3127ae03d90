"""Which parts of sampling a row needs, and a batch of rows. No torch here."""

from collections.abc import Sequence
from dataclasses import fields, replace
from operator import attrgetter

from outrider.step.shape import ALL_STATES, NO_STATES, SAMPLED_STATES, SamplingFlags
from outrider.wire.row_sampling import MAX_NAMED, Filters, Penalties, RowSampling

_NO_PENALTIES, _NO_FILTERS = Penalties(), Filters()
_NAMES = tuple(field.name for field in fields(SamplingFlags))
_PARTS = attrgetter(*_NAMES)
_TOPS = (0, 1, 5, 20)  # numbers of most likely tokens that a step reports
_NAMED = (0, 8, MAX_NAMED)  # numbers of tokens that requests name


def decode_flags(row: RowSampling) -> SamplingFlags:
    """The parts that this row needs while it decodes."""
    return SamplingFlags(
        noise=row.temperature > 0,
        filters=_is_filtered(row),
        penalties=row.penalties != _NO_PENALTIES,
        bias=bool(row.bias) or has_ban(row),
        allowed=bool(row.restrictions.allowed),
        bad_words=bool(row.restrictions.bad_words),
        thinking=row.restrictions.thinking.is_wanted,
        logprobs=row.logprobs.chosen or row.logprobs.top > 0,
        top_logprobs=_round_up(row.logprobs.top, _TOPS),
        named_logprobs=_round_up(len(row.logprobs.named), _NAMED),
        trees=row.trace,
        hidden_states=NO_STATES if row.hidden_states == "none" else SAMPLED_STATES,
        predictions=bool(row.prediction),
    )


def prompt_flags(row: RowSampling) -> SamplingFlags:
    """The parts that this row needs while its prompt runs; the prompt may be scored too."""
    flags, prompt = decode_flags(row), row.logprobs.prompt
    if row.hidden_states in ("all", "sum"):
        flags = replace(flags, hidden_states=ALL_STATES)
    if not prompt.is_wanted:
        return flags
    top = _round_up(max(row.logprobs.top, prompt.top), _TOPS)
    return replace(flags, scores=True, top_logprobs=top)


def joined_flags(flags: Sequence[SamplingFlags]) -> SamplingFlags:
    """The flags that at least one of them has, and the largest counts."""
    if len(flags) < 2:  # usual: all rows have the same flags
        return flags[0] if flags else SamplingFlags()
    parts = zip(*map(_PARTS, flags), strict=True)
    return SamplingFlags(**{name: max(part) for name, part in zip(_NAMES, parts, strict=True)})


def has_ban(row: RowSampling) -> bool:
    """Whether the ban is an edit of logits. With a grammar the ban is part of the masks."""
    return bool(row.ban.tokens) and not row.grammar.is_wanted


def _is_filtered(row: RowSampling) -> bool:
    """Filters keep the most likely token, so without noise they change nothing."""
    return row.temperature > 0 and row.filters != _NO_FILTERS


def _round_up(count: int, sizes: tuple[int, ...]) -> int:
    """Rounded up to a few sizes, since each is a shape; a row reports as many as it wants."""
    return next((size for size in sizes if size >= count), count)
