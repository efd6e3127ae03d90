"""The parameters of one request. Names, defaults and meanings are vLLM's where it has them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, get_args

from outrider.errors import RequestError
from outrider.frontend.restriction_params import (
    MAX_SALT,
    check_allowed,
    check_bad_words,
    check_text,
)
from outrider.frontend.speculation_params import Speculation, parse_speculation
from outrider.frontend.structured_params import Structured, parse_structured
from outrider.frontend.thinking_params import Thinking
from outrider.frontend.vllm_sampling_params import TakesVllmArguments
from outrider.wire.draft_budget import Budget
from outrider.wire.grammar_spec import GrammarSpec
from outrider.wire.hidden_states import HiddenStatesMode
from outrider.wire.row_sampling import MAX_BIAS, MAX_NAMED

MAX_OUTPUTS = 1024
MAX_SEED = 2**63 - 1
MAX_LOGPROBS = 20


class _Parsed:
    """What `logit_bias`, `speculation` and `structured` mean: parsed once, when they are given.

    All outputs of all prompts that have the same parameters share the results. They are not fields
    of `SamplingParams`, so that `asdict` returns its arguments and nothing else.
    """

    __slots__ = ("bias_entries", "draft_budget", "grammar_spec")

    bias_entries: tuple[tuple[int, float], ...]
    draft_budget: Budget
    grammar_spec: GrammarSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams(_Parsed, metaclass=TakesVllmArguments):
    """How the tokens of one request are chosen and when it ends; checked when it is made.

    With `n` > 1, output 0 uses `seed` itself and output i a seed derived from (seed, i). Every
    output names the seed it used: a request of its own with that seed repeats it. What else vLLM's
    class takes is accepted where it changes nothing, and `structured_outputs` is `structured`.
    """

    n: int = 1
    temperature: float = 1.0  # 0 always takes the most likely token
    top_p: float = 1.0
    top_k: int = 0  # 0 or -1 keeps every token
    min_p: float = 0.0
    seed: int | None = None  # None or -1 draws a random one, which the output names
    max_tokens: int | None = 16  # None goes on to the end of the context; 0 only reads the prompt
    min_tokens: int = 0  # no stop of any kind before this many tokens
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    logprobs: int | None = None  # k reports the chosen token and the k most likely ones
    logprob_token_ids: Sequence[int] | None = None  # further tokens that are reported throughout
    prompt_logprobs: int | None = None  # likewise of the prompt's own tokens, which then all run
    prompt_logprobs_start: int = 1  # the first position that is wanted; position 0 has none
    logit_bias: Mapping[int, float] | None = None  # added to the logits of these tokens
    allowed_token_ids: Sequence[int] | None = None  # the only tokens that may be chosen
    bad_words: Sequence[str] | None = None  # texts that must not be in the answer
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    detokenize: bool = True  # False returns token ids and an empty text
    # Bounds the drafts of this request, never its tokens: "off", or sizes such as {"steps": 2}.
    speculation: Speculation = None
    # The form of the answer: "json_object", {"json": schema}, {"regex": "..."}, {"choice": [...]},
    # {"grammar": "root ::= ..."} or {"structural_tag": {...}}.
    structured: Structured = None
    # Report hidden states: "last" that of the position that chose the last token, "all" or True
    # those of every position that ran, the prompt's too.
    return_hidden_states: HiddenStatesMode | bool = "none"
    trace: bool = False  # report what every round drafted and accepted
    thinking: Thinking | None = None  # bounds the reasoning of the answer
    truncate_prompt_tokens: int | None = None  # keep this many at the prompt's end; -1: what fits
    # A text that the answer is expected to resemble. The n-gram drafter drafts from it.
    prediction: str = ""
    cache_salt: str = ""  # cached prefixes are shared among requests of the same salt
    priority: int = 0  # smaller runs first and may preempt others; equals in order of arrival
    learn: bool = True  # False: a server with --learn does not learn from this request

    def __post_init__(self) -> None:
        values = asdict(self)
        for name, allowed in _RANGES.items():
            if not (values[name] is None and name in _MAY_BE_NONE):
                _check_range(name, values[name], allowed)
        for name in _FLAGS:
            if not isinstance(values[name], bool):
                raise RequestError(f"{name} must be true or false, got {values[name]!r}")
        _check_length(self)
        _check_stops(self)
        _check_bias(self)
        _check_named(self)
        _check_states(self)
        check_allowed(self.allowed_token_ids)
        check_bad_words(self.bad_words)
        check_text("prediction", self.prediction)
        check_text("cache_salt", self.cache_salt, most=MAX_SALT)
        if self.allowed_token_ids and self.bad_words:  # together they could leave no token
            raise RequestError(
                "allowed_token_ids and bad_words exclude each other; leave tokens out of "
                "allowed_token_ids instead"
            )
        if self.structured is not None and (self.allowed_token_ids or self.bad_words):
            raise RequestError(
                "structured output cannot be combined with allowed_token_ids or bad_words; "
                "describe the allowed text by the grammar"
            )
        bias = tuple(sorted((self.logit_bias or {}).items()))
        object.__setattr__(self, "bias_entries", bias)
        object.__setattr__(self, "draft_budget", parse_speculation(self.speculation))
        object.__setattr__(self, "grammar_spec", parse_structured(self.structured))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles hold the arguments, which are parsed again."""
        return _from_arguments, ({each.name: getattr(self, each.name) for each in fields(self)},)

    @property
    def hidden_states_mode(self) -> HiddenStatesMode:
        """Which hidden states are reported, however that was given."""
        given = self.return_hidden_states
        if isinstance(given, bool):
            return "all" if given else "none"
        return given

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, however they were given."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


@dataclass(frozen=True, slots=True)
class _Range:
    """The numbers one field allows, and what to write instead of a wrong one."""

    kind: type[int] | type[float]
    low: float
    high: float
    fix: str
    low_is_allowed: bool = True

    def __str__(self) -> str:
        kind = "an integer" if self.kind is int else "a number"
        floor = f"{'of at least' if self.low_is_allowed else 'above'} {self.low}"
        return (
            f"{kind} {floor}" if math.isinf(self.high) else f"{kind} {floor}, at most {self.high}"
        )

    def allows(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, self.kind | int):
            return False
        is_inside = self.low <= value <= self.high and value != math.inf
        return is_inside and (self.low_is_allowed or value != self.low)


_RANGES = {
    "n": _Range(int, 1, MAX_OUTPUTS, "use several requests for more"),
    "temperature": _Range(float, 0, 100, "use 0 for greedy decoding"),
    "top_p": _Range(float, 0, 1, "use 1 to keep every token", low_is_allowed=False),
    "top_k": _Range(int, -1, math.inf, "use 0 to keep every token"),
    "min_p": _Range(float, 0, 1, "use 0 to keep every token"),
    "truncate_prompt_tokens": _Range(int, -1, math.inf, "leave it out to keep all tokens"),
    "seed": _Range(int, -1, MAX_SEED, "leave it out for a random one"),
    "max_tokens": _Range(int, 0, math.inf, "use 0 to read the prompt without an answer"),
    "min_tokens": _Range(int, 0, math.inf, "use 0 for no minimum"),
    "logprobs": _Range(int, 0, MAX_LOGPROBS, "leave it out for none"),
    "prompt_logprobs": _Range(int, 0, MAX_LOGPROBS, "leave it out for none"),
    "prompt_logprobs_start": _Range(int, 1, math.inf, "use 1 for all of the prompt"),
    "priority": _Range(int, -(2**31), 2**31 - 1, "use 0 for the usual place"),
    "presence_penalty": _Range(float, -2, 2, "use 0 for no penalty"),
    "frequency_penalty": _Range(float, -2, 2, "use 0 for no penalty"),
    "repetition_penalty": _Range(float, 0, 100, "use 1 for no penalty", low_is_allowed=False),
}
_MAY_BE_NONE = frozenset(
    {"seed", "max_tokens", "logprobs", "prompt_logprobs", "truncate_prompt_tokens"}
)
_FLAGS = (
    *("ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "detokenize"),
    *("trace", "learn"),
)
_ALIASES = {  # names in HTTP requests and in vLLM
    "speculative": "speculation",
    "structured_outputs": "structured",
}
PARAMETER_NAMES = frozenset({each.name for each in fields(SamplingParams)} | set(_ALIASES))
_TOKEN = _Range(int, 0, math.inf, "give a token id")
_BIAS = _Range(float, -100, 100, "use -100 to forbid a token")


def override(params: SamplingParams, changes: Mapping[str, Any]) -> SamplingParams:
    """The same parameters with some fields replaced by name, as JSON gives them."""
    for name in changes:
        if name not in PARAMETER_NAMES:
            listed = ", ".join(sorted(PARAMETER_NAMES))
            raise RequestError(f"unknown sampling parameter {name!r}; use one of {listed}")
    changes = {_ALIASES.get(name, name): value for name, value in changes.items()}
    bias = changes.get("logit_bias")
    if isinstance(bias, Mapping):  # the keys of a JSON object are strings
        changes = {**changes, "logit_bias": {_integer_key(key): bias[key] for key in bias}}
    return replace(params, **changes)


def _from_arguments(arguments: dict[str, Any]) -> SamplingParams:
    return SamplingParams(**arguments)


def _integer_key(key: object) -> object:
    return int(key) if isinstance(key, str) and key.isdecimal() else key


def _check_range(name: str, value: object, allowed: _Range) -> None:
    if not allowed.allows(value):
        raise RequestError(f"{name} must be {allowed}, got {value!r}; {allowed.fix}")


def _check_length(params: SamplingParams) -> None:
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise RequestError(
            f"min_tokens ({params.min_tokens}) exceeds max_tokens ({params.max_tokens}); "
            "raise max_tokens"
        )


def _check_stops(params: SamplingParams) -> None:
    if not isinstance(params.stop, str | Sequence | None):
        raise RequestError(f"stop must be a string or a list of strings, got {params.stop!r}")
    for stop in params.stops:
        if not isinstance(stop, str) or not stop:
            raise RequestError(f"stop must hold non-empty strings, got {stop!r}; leave it out")
    if params.stops and not params.detokenize:
        raise RequestError("stop strings need text; set detokenize=True or use stop_token_ids")
    if not isinstance(params.stop_token_ids, Sequence | None):
        raise RequestError(f"stop_token_ids must be a list of ids, got {params.stop_token_ids!r}")
    for token in params.stop_token_ids or ():
        _check_range("stop_token_ids", token, _TOKEN)


def _check_named(params: SamplingParams) -> None:
    if not isinstance(params.logprob_token_ids, Sequence | None):
        raise RequestError(
            f"logprob_token_ids must be a list of ids, got {params.logprob_token_ids!r}"
        )
    named = params.logprob_token_ids or ()
    if len(named) > MAX_NAMED:
        raise RequestError(f"logprob_token_ids has {len(named)} tokens; use at most {MAX_NAMED}")
    for token in named:
        _check_range("logprob_token_ids", token, _TOKEN)
    if named and params.logprobs is None and params.prompt_logprobs is None:
        raise RequestError(
            "logprob_token_ids are reported beside other log-probabilities, and none are "
            "requested; set logprobs=0 or prompt_logprobs=0"
        )


def _check_states(params: SamplingParams) -> None:
    given = params.return_hidden_states
    if not isinstance(given, bool) and given not in get_args(HiddenStatesMode):
        modes = ", ".join(get_args(HiddenStatesMode))
        raise RequestError(f"return_hidden_states must be one of {modes}, got {given!r}")


def _check_bias(params: SamplingParams) -> None:
    if not isinstance(params.logit_bias, Mapping | None):
        raise RequestError(f"logit_bias must map token ids to numbers, got {params.logit_bias!r}")
    bias = params.logit_bias or {}
    if len(bias) > MAX_BIAS:
        raise RequestError(f"logit_bias has {len(bias)} tokens; use at most {MAX_BIAS}")
    for token, value in bias.items():
        _check_range("logit_bias", token, _TOKEN)
        _check_range("logit_bias", value, _BIAS)
