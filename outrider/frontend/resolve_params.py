"""From what a user asked to what the engine runs: complete values, checked against the model."""

import secrets
from dataclasses import dataclass

from outrider.errors import RequestError
from outrider.frontend.sampling_params import MAX_SEED, SamplingParams
from outrider.wire.grammar_spec import NO_GRAMMAR, Grammar
from outrider.wire.row_sampling import (
    MAX_BANNED,
    Ban,
    Filters,
    LogprobsWanted,
    Penalties,
    PromptLogprobs,
    RowSampling,
)
from outrider.wire.submission import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBounds:
    """What a request must respect of the model it is sent to."""

    max_context: int  # prompt and output together
    vocab_size: int
    eos_ids: frozenset[int]
    special_ids: frozenset[int] = frozenset()


def resolve_limits(params: SamplingParams, *, prompt_len: int, bounds: ModelBounds) -> Limits:
    """When the request ends: no later than the end of the context."""
    room = bounds.max_context - prompt_len
    stop_ids = frozenset(params.stop_token_ids or ())
    _check_tokens("stop_token_ids", tuple(stop_ids), bounds.vocab_size)
    return Limits(
        max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
        stop_ids=stop_ids if params.ignore_eos else stop_ids | bounds.eos_ids,
    )


def resolve_sampling(
    params: SamplingParams, *, seed: int, prompt_len: int, limits: Limits, bounds: ModelBounds
) -> RowSampling:
    """The law of one row; `min_tokens` becomes a ban of the stop ids before a position."""
    bias = tuple(sorted((params.logit_bias or {}).items()))
    _check_tokens("logit_bias", tuple(token for token, _ in bias), bounds.vocab_size)
    return RowSampling(
        seed=seed,
        temperature=float(params.temperature),
        filters=Filters(
            top_k=min(max(params.top_k, 0), bounds.vocab_size),
            top_p=params.top_p,
            min_p=params.min_p,
        ),
        penalties=Penalties(
            repetition=params.repetition_penalty,
            presence=params.presence_penalty,
            frequency=params.frequency_penalty,
        ),
        bias=bias,
        ban=_ban(min(params.min_tokens, limits.max_tokens), prompt_len, limits.stop_ids),
        logprobs=_logprobs(params, bounds),
        trace=params.trace,
        grammar=_grammar(params, bounds),
    )


def _logprobs(params: SamplingParams, bounds: ModelBounds) -> LogprobsWanted:
    named = tuple(params.logprob_token_ids or ())
    _check_tokens("logprob_token_ids", named, bounds.vocab_size)
    return LogprobsWanted(
        chosen=params.logprobs is not None,
        top=min(params.logprobs or 0, bounds.vocab_size),
        named=named,
        prompt=PromptLogprobs(
            is_wanted=params.prompt_logprobs is not None,
            first=params.prompt_logprobs_start,
            top=min(params.prompt_logprobs or 0, bounds.vocab_size),
        ),
    )


def _ban(min_tokens: int, prompt_len: int, stop_ids: frozenset[int]) -> Ban:
    if not min_tokens or not stop_ids:
        return Ban()
    if len(stop_ids) > MAX_BANNED:
        raise RequestError(
            f"min_tokens works with at most {MAX_BANNED} stop ids, got {len(stop_ids)}; drop some"
        )
    return Ban(before=prompt_len + min_tokens, tokens=tuple(sorted(stop_ids)))


def _grammar(params: SamplingParams, bounds: ModelBounds) -> Grammar:
    """The form of the answer, and the tokens that may end it where it is complete.

    A stop id that spells something is an ordinary token of the answer, which the engine ends there.
    """
    spec = params.grammar_spec
    if spec.kind == "none":
        return NO_GRAMMAR
    asked = frozenset(params.stop_token_ids or ())
    ends = bounds.eos_ids | (asked & bounds.special_ids) or asked
    if not ends:
        raise RequestError(
            "structured output must be able to end, and the model has no end-of-sequence token; "
            "give stop_token_ids"
        )
    return Grammar(spec=spec, ends=tuple(sorted(ends)))


def admit_seed(params: SamplingParams) -> int:
    """The user's seed, or a random one short enough to be read out and typed in again."""
    if params.seed is None or params.seed == -1:
        return secrets.randbits(32)
    return params.seed


def child_seed(seed: int, index: int) -> int:
    """The seed of output `index` of one request: the seed itself, then mixes of (seed, index)."""
    if index == 0:
        return seed
    # The finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection that scatters close inputs.
    word = 2**64 - 1
    mixed = (seed + index * 0x9E3779B97F4A7C15) & word
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & word
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & word
    return (mixed ^ (mixed >> 31)) & MAX_SEED


def _check_tokens(name: str, tokens: tuple[int, ...], vocab_size: int) -> None:
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise RequestError(
                f"{name} holds token {token}, outside the vocabulary; "
                f"use ids from 0 to {vocab_size - 1}"
            )
