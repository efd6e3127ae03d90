"""SGLang's own `/generate`: the request, and the answer with its `meta_info`."""

from typing import Annotated, Any, TypeVar

from pydantic import Field

from outrider.errors import RequestError
from outrider.frontend.output_json import finite
from outrider.frontend.prompts import TextPrompt, TokenPrompt, embedded_prompt
from outrider.frontend.read_embeds import read_embeds
from outrider.frontend.request_state import OutputState, RequestState
from outrider.frontend.sampling_params import (
    MAX_LOGPROBS,
    PARAMETER_NAMES,
    SamplingParams,
    override,
)
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer
from outrider.hub.generation_config import NO_DEFAULTS, SamplingDefaults
from outrider.server.protocol.completions_protocol import Texts, TokenIds, TokenLists
from outrider.server.protocol.image_parts import image_url
from outrider.server.protocol.neutral_fields import drop_neutral
from outrider.server.protocol.sampling_fields import MAX_STOP_CHARS, MAX_STOPS
from outrider.server.protocol.transfer_fields import TransferFields
from outrider.wire.hidden_states import HiddenStatesMode
from outrider.wire.step_result import TokenLogprobs

Json = dict[str, Any]

# SGLang's names of our parameters.
_NAMES = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "sampling_seed": "seed",
    "no_stop_trim": "include_stop_str_in_output",
}
_GRAMMARS = {
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    "structural_tag": "structural_tag",
}
_KNOWN = frozenset((*_NAMES, *_GRAMMARS, *PARAMETER_NAMES))
_DEFAULTS = SamplingParams(max_tokens=128)
_UNNAMED = "unknown"  # smg writes this where the client named no model

Count = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]
Item = TypeVar("Item")
Each = Annotated[list[Item], Field(fail_fast=True)]
GivenUrl = str | dict[str, Any]  # a URL, base64, or {"url": ...}


class GenerateRequest(TransferFields):
    """One prompt or several, as text or as ids."""

    model: str | None = None  # SGLang has none; routers add it
    max_tokens: int | None = None  # likewise; `max_new_tokens` of `sampling_params` wins
    text: str | Texts | None = None
    input_ids: TokenIds | TokenLists | None = None
    input_embeds: Each[Each[float]] | Each[Each[Each[float]]] | None = None
    # An image or a list of them for one prompt; for several prompts, one of these for each.
    image_data: GivenUrl | Each[GivenUrl | Each[GivenUrl] | None] | None = None
    sampling_params: Json | Each[Json] | None = None
    # One for all prompts, or one for each.
    return_logprob: bool | Each[bool] | None = None
    logprob_start_len: int | Each[int] | None = None  # -1: no log-probabilities of the prompt
    top_logprobs_num: Count | Each[Count] | None = None
    token_ids_logprob: Each[int] | Each[Each[int] | None] | None = None
    return_hidden_states: bool | HiddenStatesMode | Each[bool | HiddenStatesMode] | None = None
    return_text_in_logprobs: bool | None = None  # without effect: the text is always there
    stream: bool | None = None
    rid: str | Each[str] | None = None
    priority: int | None = None
    lora_path: str | Each[str | None] | None = None  # the name of an adapter
    cache_salt: str | None = None
    extra_key: str | None = None
    speculative: bool | str | Json | None = None  # an extension of ours
    learn: bool | None = None  # likewise

    def check(self) -> None:
        """Refuse fields that do not fit together."""
        given = [self.text, self.input_ids, self.input_embeds]
        if sum(each is not None for each in given) != 1:
            raise RequestError("give one of text, input_ids and input_embeds")
        if self.input_embeds == []:
            raise RequestError("input_embeds is empty; give [tokens, hidden]")
        if self.text is None and any(self.image_urls):
            raise RequestError("image_data needs text, with a placeholder for each image")

    @property
    def named_model(self) -> str | None:
        """The model that the client named, if it did."""
        return None if self.model == _UNNAMED else self.model

    @property
    def is_single(self) -> bool:
        """Whether the answer is one object instead of a list."""
        if self.input_embeds is not None:
            return not self.input_embeds[0] or isinstance(self.input_embeds[0][0], float)
        given: Any = self.text if self.input_ids is None else self.input_ids
        return isinstance(given, str) or isinstance(given[0], int)

    @property
    def has_embeds(self) -> bool:
        """Whether the prompts are embeddings, which only some servers may read."""
        return self.input_embeds is not None

    @property
    def num_prompts(self) -> int:
        given: Any = self.input_embeds or self.input_ids or self.text
        return 1 if self.is_single else len(given)

    @property
    def prompts(self) -> list[TextPrompt | TokenPrompt]:
        if self.input_embeds is not None:
            embeds: Any = [self.input_embeds] if self.is_single else self.input_embeds
            return [embedded_prompt(read_embeds(each)) for each in embeds]
        if self.input_ids is None:
            texts: Any = [self.text] if self.is_single else self.text
            return [TextPrompt(text) for text in texts]
        ids: Any = [self.input_ids] if self.is_single else self.input_ids
        return [TokenPrompt(tuple(each)) for each in ids]

    @property
    def image_urls(self) -> list[list[str]]:
        """The URLs of the images of each prompt."""
        given: Any = self.image_data or None
        if self.is_single and isinstance(given, list):
            given = [given]
        listed = [
            each if isinstance(each, list) else [each]
            for each in _each("image_data", given, self.num_prompts)
        ]
        return [[image_url(one) for one in each if one is not None] for each in listed]

    @property
    def lora_paths(self) -> list[str | None]:
        """The name of the adapter of each prompt."""
        return _each("lora_path", self.lora_path or None, self.num_prompts)

    def params(self, defaults: SamplingDefaults = NO_DEFAULTS) -> list[SamplingParams]:
        """One set of parameters per prompt. Prompts with equal parameters share one object."""
        num_prompts = self.num_prompts
        given = _each("sampling_params", self.sampling_params or {}, num_prompts)
        made: dict[tuple[int, int], SamplingParams] = {}  # by the ids of both parts
        params = []
        for one, report in zip(given, self._reports(num_prompts), strict=True):
            key = (id(one), id(report))
            if key not in made:
                made[key] = self._params(one, report, defaults)
            params.append(made[key])
        return params

    def _reports(self, num_prompts: int) -> list[Json]:
        """What each prompt wants besides tokens; equal ones are one object."""
        named = self.token_ids_logprob
        is_one = not named or isinstance(named[0], int)
        columns = zip(
            _each("return_logprob", self.return_logprob, num_prompts),
            _each("logprob_start_len", self.logprob_start_len, num_prompts),
            _each("top_logprobs_num", self.top_logprobs_num, num_prompts),
            _each("return_hidden_states", self.return_hidden_states, num_prompts),
            [named] * num_prompts if is_one else _each("token_ids_logprob", named, num_prompts),
            strict=True,
        )
        made: dict[tuple[Any, ...], Json] = {}
        reports = []
        for column in columns:
            key = (*column[:-1], id(column[-1]))
            if key not in made:
                made[key] = _report(*column)
            reports.append(made[key])
        return reports

    def _params(self, sampling: Json, report: Json, defaults: SamplingDefaults) -> SamplingParams:
        known = drop_neutral(sampling, _KNOWN, place="sampling_params.")
        grammar = {_GRAMMARS[name]: known.pop(name) for name in _GRAMMARS if name in known}
        given = {_NAMES.get(name, name): value for name, value in known.items()}
        if any(value is not None for value in grammar.values()):
            given["structured"] = grammar
        _check_stops(given.get("stop"))
        own = {
            "max_tokens": self.max_tokens,
            "speculation": self.speculative,
            "priority": self.priority,
            "cache_salt": self.cache_salt or self.extra_key,
            "learn": self.learn,
        }
        if self.is_decoded_elsewhere:  # routers set `max_tokens` to 1, and leave this as it is
            given["min_tokens"] = 0
        values = {name: v for name, v in (own | given | report).items() if v is not None}
        return override(_DEFAULTS, {**defaults, **values})


def _check_stops(stop: Any) -> None:
    """Refuse many or long stop strings; `SamplingParams` checks the type."""
    stops = stop if isinstance(stop, list) else [stop]
    if len(stops) > MAX_STOPS:
        raise RequestError(f"stop has {len(stops)} strings; use at most {MAX_STOPS}")
    if any(isinstance(each, str) and len(each) > MAX_STOP_CHARS for each in stops):
        raise RequestError(f"a stop string may have {MAX_STOP_CHARS} characters; shorten it")


def _each(name: str, given: Any, num_prompts: int) -> list[Any]:
    """A value for every prompt, from a list or from one value for all."""
    if not isinstance(given, list):
        return [given] * num_prompts
    if len(given) != num_prompts:
        raise RequestError(f"{len(given)} {name} for {num_prompts} prompts")
    return given


def _report(
    has_logprobs: bool | None,
    start: int | None,
    top: int | None,
    states: bool | HiddenStatesMode | None,
    named: list[int] | None,
) -> Json:
    """Parameters of one prompt. SGLang's list begins at `start`, whose entry has no logprob."""
    held: Json = {"return_hidden_states": states}
    if not has_logprobs:
        return held
    if start is not None and start < -1:
        raise RequestError(f"logprob_start_len must be at least -1, got {start}")
    report = held | {"logprobs": top or 0, "logprob_token_ids": named}
    if start is None or start < 0:
        return report
    return report | {"prompt_logprobs": top or 0, "prompt_logprobs_start": start + 1}


def generated(
    request: RequestState, index: int, tokenizer: Tokenizer | NoTokenizer, *, name: str
) -> Json:
    """One output so far, in SGLang's format."""
    output, usage = request.outputs[index], request.usage
    progress, tokens = output.progress, output.token_ids
    meta: Json = {
        "id": name,
        "finish_reason": _reason(output),
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": len(tokens),
        "cached_tokens": usage.cached_tokens,
        "e2e_latency": request.timing.total_s,
        "spec_verify_ct": progress.rounds,
        "spec_accept_length": len(tokens) / max(1, progress.rounds),
        "spec_accept_rate": progress.num_accepted / max(1, progress.drafted),
        "seed": request.prepared.samplings[index].seed,
    }
    if request.prepared.params.logprobs is not None:
        meta |= _listed("output", tokens, output.logprobs, request.prepared.params, tokenizer)
        meta |= _prompt_logprobs(request, output, tokenizer)
    if output.hidden_states.is_wanted and output.is_finished:
        meta["hidden_states"] = _states(request, output)
    return {"text": output.text, "output_ids": tokens, "meta_info": meta}


def _states(request: RequestState, output: OutputState) -> list[Any]:
    """A list of those of the prompt, then those of the answer; or the last one alone."""
    rows = output.hidden_states.rows()
    if request.prepared.params.hidden_states_mode == "last":
        return rows
    num_prompt = len(request.prepared.prompt)
    return [rows[:num_prompt], *rows[num_prompt:]]


def _reason(output: OutputState) -> Json | None:
    match output.ending.finish:
        case "running":
            return None
        case "length":
            return {"type": "length", "length": len(output.token_ids)}
        case "stop":
            return {"type": "stop", "matched": output.matched}
    return {"type": output.ending.finish}


def _prompt_logprobs(
    request: RequestState, output: OutputState, tokenizer: Tokenizer | NoTokenizer
) -> Json:
    """The log-probabilities of the prompt; the first entry is a token without one."""
    params = request.prepared.params
    if params.prompt_logprobs is None:
        return _listed("input", [], [], params, tokenizer)
    tokens = list(request.prepared.prompt[params.prompt_logprobs_start - 1 :])
    listed = _listed("input", tokens[1:], output.prompt_logprobs, params, tokenizer)
    opening: Json = dict.fromkeys(listed)
    if tokens:
        opening["input_token_logprobs"] = (None, tokens[0], tokenizer.token_text(tokens[0]))
    return {name: [opening[name], *listed[name]] if tokens else [] for name in listed}


def _listed(
    side: str,
    tokens: list[int],
    reported: list[TokenLogprobs],
    params: SamplingParams,
    tokenizer: Tokenizer | NoTokenizer,
) -> Json:
    """(logprob, id, text) per token: of itself, of the likeliest tokens, of the named tokens."""

    def triple(value: float, token: int) -> tuple[float, int, str]:
        return finite(value), token, tokenizer.token_text(token)

    pairs = zip(tokens, reported, strict=False)  # a prompt that still runs has no scores yet
    named = params.logprob_token_ids or ()
    return {
        f"{side}_token_logprobs": [triple(at.chosen, token) for token, at in pairs],
        f"{side}_top_logprobs": [[triple(v, token) for token, v in at.top] for at in reported],
        f"{side}_token_ids_logprobs": [
            [triple(value, token) for token, value in zip(named, at.named, strict=True)]
            for at in reported
        ],
    }
