"""The request fields that several routes share: OpenAI's, and extensions of vLLM and SGLang."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from outrider.errors import RequestError
from outrider.frontend.sampling_params import SamplingParams, override
from outrider.frontend.structured_params import Structured
from outrider.server.protocol.neutral_fields import RequestBody

MAX_STOPS = 64
MAX_STOP_CHARS = 1024

StopString = Annotated[str, Field(max_length=MAX_STOP_CHARS)]
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
        "include_stop_str_in_output",
        "skip_special_tokens",
        "speculative",
        "priority",
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
    priority: int | None = None
    return_metrics: bool | None = None
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
        return override(defaults, given | more)


def structured_output(response_format: dict[str, Any] | None, structured: Structured) -> Structured:
    """The grammar of an answer, from OpenAI's response format or vLLM's structured outputs."""
    formatted = _read_format(response_format or {"type": "text"})
    if formatted is not None and structured is not None:
        raise RequestError("response_format and structured_outputs exclude each other; give one")
    return structured if formatted is None else formatted


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
