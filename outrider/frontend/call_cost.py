"""The cost of a call, counted before anything is built for it, and the limits on it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from outrider.errors import RequestError
from outrider.frontend.prompts import TextPrompt, TokenPrompt
from outrider.frontend.sampling_params import SamplingParams
from outrider.wire.adapter import NO_ADAPTER, Adapter
from outrider.wire.row_sampling import MAX_PREDICTION
from outrider.wire.transfer_order import NO_TRANSFER, TransferOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRequest:
    """One prompt of a call, with its parameters. Prompts of one call may share them."""

    prompt: TextPrompt | TokenPrompt
    params: SamplingParams
    transfer: TransferOrder = NO_TRANSFER
    adapter: Adapter = NO_ADAPTER


# Bytes of one each, in a process of the server: objects of Python, and what they refer to.
_OUTPUT_BYTES = 4096
_VALUE_BYTES = 40
_LOGPROB_BYTES = 120
_STATE_BYTES = 64  # of a channel of a hidden state: a number of Python, and its digits
_GRAMMAR_BYTES = 16  # of a character of a grammar: its text, the parsed form, the message
# An image after resizing, at most: 17 tiles of SmolVLM are 13 MiB, one of Qwen3-VL up to 48.
MAX_IMAGE_BYTES = 50 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """What all prompts and choices of one call may cost together."""

    outputs: int  # prompts times n: as many as the server can hold
    values: int = 2**22  # sent to the engine
    logprobs: int = 2**22  # reported; they are kept until the answer is sent
    states: int = 2**20  # channels of hidden states; as JSON they take 50 ms of the server
    hidden_size: int = 1  # channels of one


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCost:
    """Upper bounds: a text has at most one token per character, and may end early."""

    outputs: int
    values: int  # each output has its own copy of the prompt, biases, stop ids and stop strings
    logprobs: int
    states: int  # channels of hidden states
    grammar_chars: int  # all outputs of a prompt share one grammar
    image_bytes: int = 0  # of resized images: a bound until they are

    @property
    def num_bytes(self) -> int:
        """About the memory that the call takes until its answer is sent, besides its body."""
        return (
            self.outputs * _OUTPUT_BYTES
            + self.values * _VALUE_BYTES
            + self.logprobs * _LOGPROB_BYTES
            + self.states * _STATE_BYTES
            + self.grammar_chars * _GRAMMAR_BYTES
            + self.image_bytes
        )


# Raises if there is no room for the call. A second cost of the same call replaces the first.
Admit = Callable[[CallCost], None]


def admit_any(cost: CallCost) -> None:
    """Admit every call: for callers that have no common limit."""
    del cost


def check_call(
    requests: Iterable[PromptRequest], limits: CallLimits, *, max_context: int
) -> CallCost:
    """The cost of a call, which is refused if it costs too much.

    This builds nothing of the size of the cost.
    """
    cost = _sum_costs([_cost(each, max_context, limits.hidden_size) for each in requests])
    if cost.outputs > limits.outputs:
        raise RequestError(
            f"the request wants {cost.outputs} answers and the server holds {limits.outputs} at a "
            "time; send fewer at once, or start it with a larger --max-queued"
        )
    if cost.values > limits.values:
        raise RequestError(
            f"the prompts, biases and stops of all choices have {cost.values} values together, and "
            f"a request may have {limits.values}; send fewer prompts or choices at once"
        )
    if cost.logprobs > limits.logprobs:
        raise RequestError(
            f"the request wants up to {cost.logprobs} log-probabilities and may want "
            f"{limits.logprobs}; set a smaller max_tokens, or ask for fewer choices or logprobs"
        )
    if cost.states > limits.states:
        raise RequestError(
            f"the hidden states have up to {cost.states} values together, and a request may have "
            f'{limits.states}; set a smaller max_tokens, or return_hidden_states to "last"'
        )
    return cost


def _sum_costs(costs: Sequence[CallCost]) -> CallCost:
    return CallCost(
        outputs=sum(cost.outputs for cost in costs),
        values=sum(cost.values for cost in costs),
        logprobs=sum(cost.logprobs for cost in costs),
        states=sum(cost.states for cost in costs),
        grammar_chars=sum(cost.grammar_chars for cost in costs),
        image_bytes=sum(cost.image_bytes for cost in costs),
    )


def _cost(request: PromptRequest, max_context: int, hidden_size: int) -> CallCost:
    prompt, params = request.prompt, request.params
    given = prompt.text if isinstance(prompt, TextPrompt) else prompt.token_ids
    num_tokens = min(len(given), max_context)  # a longer prompt is refused
    num_named = len(params.logprob_token_ids or ())
    num_ids = len(params.logit_bias or ()) + len(params.stop_token_ids or ()) + num_named
    num_ids += len(params.allowed_token_ids or ()) + min(len(params.prediction), MAX_PREDICTION)
    num_ids += sum(map(len, params.bad_words or ()))
    if isinstance(prompt, TokenPrompt):
        num_ids += sum(len(span.values) for span in prompt.embeds) // _VALUE_BYTES
    return CallCost(
        outputs=params.n,
        values=params.n * (num_tokens + num_ids + sum(map(len, params.stops))),
        logprobs=params.n * _num_logprobs(params, num_tokens, num_named, max_context),
        states=params.n * _num_states(params, num_tokens, max_context) * hidden_size,
        grammar_chars=len(params.grammar_spec.text),
        image_bytes=len(prompt.images) * MAX_IMAGE_BYTES,  # each once, while it is resized
    )


def _num_logprobs(params: SamplingParams, num_tokens: int, num_named: int, max_context: int) -> int:
    """Of one output and its prompt."""
    num_outputs, total = _most_emitted(params, num_tokens, max_context), 0
    if params.logprobs is not None:
        total += num_outputs * (1 + params.logprobs + num_named)
    if params.prompt_logprobs is not None:
        total += num_tokens * (1 + params.prompt_logprobs + num_named)
    return total


def _num_states(params: SamplingParams, num_tokens: int, max_context: int) -> int:
    """Hidden states of one output."""
    match params.hidden_states_mode:
        case "none":
            return 0
        case "last":
            return 1
        case "all":
            return num_tokens + _most_emitted(params, num_tokens, max_context)


def _most_emitted(params: SamplingParams, num_tokens: int, max_context: int) -> int:
    room = max_context - num_tokens
    return room if params.max_tokens is None else min(params.max_tokens, room)
