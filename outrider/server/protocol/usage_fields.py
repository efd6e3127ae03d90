"""Fields of answers that several routes share: usage, and metrics of speculation."""

from itertools import pairwise, zip_longest

from pydantic import BaseModel

from outrider.frontend.outputs import Acceptance
from outrider.frontend.request_state import RequestState


class PromptDetails(BaseModel):
    """Which of the prompt's tokens were cached."""

    cached_tokens: int


class UsageFields(BaseModel):
    """Tokens of one HTTP request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class SpeculativeDecoding(BaseModel):
    """How many drafts were accepted, with vLLM's names.

    The mean length counts the bonus token: 1 + accepted / steps. Entry k of the histogram counts
    the steps that accepted k drafts.
    """

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int


class AnswerMetrics(BaseModel):
    """What `return_metrics` adds to an answer."""

    speculative_decoding: SpeculativeDecoding
    time_to_first_token_ms: float
    total_time_ms: float


def usage_of(requests: tuple[RequestState, ...]) -> UsageFields:
    """The sum over the requests of a handle."""
    each = [request.usage for request in requests]
    prompt = sum(usage.prompt_tokens for usage in each)
    completion = sum(usage.completion_tokens for usage in each)
    return UsageFields(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptDetails(
            cached_tokens=sum(usage.cached_tokens for usage in each)
        ),
    )


def metrics_of(requests: tuple[RequestState, ...]) -> AnswerMetrics:
    """The speculation of all outputs together, and the times of the slowest request."""
    timings = [request.timing for request in requests]
    return AnswerMetrics(
        speculative_decoding=speculation_of(requests),
        time_to_first_token_ms=1e3 * max(timing.first_token_s for timing in timings),
        total_time_ms=1e3 * max(timing.total_s for timing in timings),
    )


def speculation_of(requests: tuple[RequestState, ...]) -> SpeculativeDecoding:
    each = [output.progress for request in requests for output in request.outputs]
    total = Acceptance(
        rounds=sum(one.rounds for one in each),
        drafted=sum(one.drafted for one in each),
        kept_per_position=[
            sum(depths)
            for depths in zip_longest(*(one.accepted_per_depth for one in each), fillvalue=0)
        ],
    )
    reached = [total.rounds, *total.kept_per_position, 0]  # rounds that accepted >= 0, 1, ...
    return SpeculativeDecoding(
        mean_acceptance_length=total.accept_length,
        draft_acceptance_rate=total.accept_rate,
        acceptance_histogram=[at_least - more for at_least, more in pairwise(reached)],
        num_spec_steps=total.rounds,
        num_accepted_draft_tokens=total.kept,
        num_draft_tokens=total.drafted,
    )
