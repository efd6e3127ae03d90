"""The request fields that several routes share: OpenAI's, and extensions of vLLM and SGLang."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from outrider.errors import RequestError
from outrider.frontend.sampling_params import MAX_LOGPROBS, SamplingParams, override
from outrider.frontend.structured_params import KEYS, Structured
from outrider.server.protocol.neutral_fields import RequestBody, drop_neutral
from outrider.server.protocol.transfer_fields import TransferFields
from outrider.wire.hidden_states import HiddenStatesMode

MAX_STOPS = 64
MAX_STOP_CHARS = 1024

StopString = Annotated[str, Field(max_length=MAX_STOP_CHARS)]
RequestName = Annotated[str, Field(min_length=1, max_length=256)]
Stop = StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS, fail_fast=True)]

# Fields that have the same name in `SamplingParams`.
_SAME = frozenset(
    {
        "n",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "min_tokens",
        "logit_bias",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "allowed_token_ids",
        "bad_words",
        "truncate_prompt_tokens",
        "include_stop_str_in_output",
        "skip_special_tokens",
        "speculative",
        "priority",
        "learn",
    }
)


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None  # a last chunk with the usage
    include_obfuscation: bool | None = None  # OpenAI's; nothing is obfuscated here


class RequestFields(RequestBody):
    """Every field may be left out or null. An unknown field is refused, not ignored."""

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: Stop | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # extensions
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: Annotated[list[int], Field(fail_fast=True)] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    speculative: bool | str | dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    allowed_token_ids: Annotated[list[int], Field(fail_fast=True)] | None = None
    bad_words: Annotated[list[StopString], Field(max_length=MAX_STOPS, fail_fast=True)] | None = (
        None
    )
    truncate_prompt_tokens: int | None = None
    cache_salt: str | None = None
    request_id: RequestName | None = None  # becomes part of the answer's id
    # vLLM's older names of structured outputs
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    # SGLang's names
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    no_stop_trim: bool | None = None
    rid: RequestName | None = None
    extra_key: str | None = None
    priority: int | None = None
    return_metrics: bool | None = None
    learn: bool | None = None  # false: a server with --learn does not learn from this request
    # sent back by some routes, without effect
    user: str | None = None
    metadata: dict[str, Any] | None = None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def sampling(self, defaults: SamplingParams, **more: Any) -> SamplingParams:
        """The sampling parameters; `more` holds those that have another name in this route."""
        given = self.model_dump(include=set(_SAME), exclude_none=True)
        if self.no_stop_trim:
            given["include_stop_str_in_output"] = True
        given["cache_salt"] = self.cache_salt or self.extra_key or ""
        return override(defaults, given | more)

    @property
    def given_name(self) -> str:
        """The name that the client gave this request, or nothing."""
        return self.request_id or self.rid or ""

    def structure(self, response_format: dict[str, Any] | None) -> Structured:
        """The form of the answer, by whichever field gives it."""
        fields = {
            "response_format": _read_format(response_format or {"type": "text"}),
            "structured_outputs": _without_neutral(self.structured_outputs),
            "guided_json": _keyed("json", self.guided_json),
            "guided_regex": _keyed("regex", self.guided_regex),
            "guided_choice": _keyed("choice", self.guided_choice),
            "guided_grammar": _keyed("grammar", self.guided_grammar),
            "json_schema": _keyed("json", self.json_schema),
            "regex": _keyed("regex", self.regex),
            "ebnf": _keyed("grammar", self.ebnf),
        }
        given = {name: value for name, value in fields.items() if value is not None}
        if len(given) > 1:
            raise RequestError(f"{' and '.join(given)} exclude each other; give one")
        return next(iter(given.values()), None)


class ReportFields(RequestFields, TransferFields):
    """What else an answer reports, as in vLLM; and its adapter, as in SGLang."""

    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    return_token_ids: bool | None = None
    lora_path: str | list[str | None] | None = None  # SGLang's: the name of an adapter
    return_hidden_states: bool | HiddenStatesMode | None = None  # SGLang's; true means "last" here

    @property
    def hidden_states_mode(self) -> HiddenStatesMode:
        given = self.return_hidden_states
        if given is None or isinstance(given, bool):
            return "last" if given else "none"
        return given

    def check_reports(self) -> None:
        """Refuse reports that a stream does not have."""
        if self.stream and self.hidden_states_mode != "none":
            raise RequestError("hidden states are part of whole answers; set stream to false")
        if self.stream and self.prompt_logprobs is not None:
            raise RequestError("prompt_logprobs are part of whole answers; set stream to false")


def _keyed(name: str, value: object) -> Structured:
    return None if value is None else {name: value}


def _without_neutral(structured: dict[str, Any] | None) -> Structured:
    """vLLM's structured outputs without options that ask for nothing."""
    if structured is None:
        return None
    return drop_neutral(structured, KEYS, place="structured_outputs.")


def _read_format(response_format: dict[str, Any]) -> Structured:
    match response_format.get("type"):
        case "text":
            return None
        case "json_object":
            return "json_object"
        case "json_schema":
            # A chat has the schema inside `json_schema`, `/v1/responses` beside the type.
            envelope = response_format.get("json_schema", response_format)
            schema = envelope.get("schema") if isinstance(envelope, dict) else None
            if not isinstance(schema, dict | bool):
                raise RequestError("response_format of type json_schema needs a schema")
            return {"json": schema}
    kind = response_format.get("type")
    raise RequestError(
        f"response_format type {kind!r} is unknown; use text, json_object or json_schema"
    )
