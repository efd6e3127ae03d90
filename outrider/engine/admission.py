"""Refuses requests that could never run on this engine, by their sizes alone."""

from collections.abc import Sequence

from outrider.errors import RequestError
from outrider.wire.embedded_span import EmbeddedSpan
from outrider.wire.runner_facts import RunnerFacts
from outrider.wire.submission import Limits


def check_request(
    prompt: tuple[int, ...],
    limits: Limits,
    facts: RunnerFacts,
    embeds: Sequence[EmbeddedSpan] = (),
) -> None:
    """Refuse a request that does not fit the model, the context or the KV cache."""
    if not prompt:
        raise RequestError("the prompt is empty; give at least one token")
    if len(prompt) >= facts.host.max_context:
        raise RequestError(
            f"the prompt has {len(prompt)} tokens and the context holds {facts.host.max_context}, "
            "answer included; shorten the prompt or load the model with a larger context"
        )
    if not 0 <= min(prompt) <= max(prompt) < facts.vocab_size:
        raise RequestError(f"prompt token ids must be between 0 and {facts.vocab_size - 1}")
    _check_embeds(embeds, facts)
    _check_room(prompt, limits, facts)


def _check_embeds(embeds: Sequence[EmbeddedSpan], facts: RunnerFacts) -> None:
    if embeds and not facts.takes_embeds:
        raise RequestError(
            "this model takes no prompt_embeds: it chooses experts by token ids; send token ids"
        )
    for span in embeds:
        if span.width != facts.hidden_size:
            raise RequestError(
                f"prompt_embeds has {span.width} channels and the model {facts.hidden_size}; "
                "give [tokens, hidden] of this model's embedding"
            )


def _check_room(prompt: tuple[int, ...], limits: Limits, facts: RunnerFacts) -> None:
    capacity = facts.num_pages * facts.host.page_size
    wanted = min(len(prompt) + limits.max_tokens, facts.host.max_context)
    ahead = 2 * facts.reach
    if wanted + ahead > capacity:
        raise RequestError(
            f"the request may grow to {wanted} tokens, for which steps need {ahead} positions "
            f"more, but the KV cache holds {capacity}; lower max_tokens or raise the cache's "
            "kv_tokens"
        )
