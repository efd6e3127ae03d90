"""The parsed and checked flags of a run."""

import json
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from outrider.errors import ConfigError

EndpointName = Literal["chat", "completions"]
_PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
_CONCURRENCY = 16
_OURS = ("model", "messages", "prompt", "stream", "stream_options")  # fields that a run decides


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of the server and how requests are sent to it."""

    base_url: str  # without /v1 and without a slash at the end
    name: EndpointName
    api_key: str  # empty: none
    timeout_s: float  # of a whole request

    @property
    def url(self) -> str:
        return self.base_url + _PATHS[self.name]

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoop:
    """Requests are sent at random times, however slow the server is."""

    rate: float  # requests per second
    seed: int

    def __str__(self) -> str:
        return f"Poisson arrivals at {self.rate:g}/s (seed {self.seed})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """A number of clients; each sends its next request when it has its answer."""

    concurrency: int

    def __str__(self) -> str:
        return f"{self.concurrency} at a time"


Pattern = OpenLoop | ClosedLoop


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """The limits within which a request counts as good."""

    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadQuestions:
    """The requests: prompts in their order, again from the first when they run out."""

    prompts: tuple[str, ...]
    origin: str
    num: int
    seed: int
    fields: dict[str, Any]  # of the body besides the prompt: max_tokens, temperature, ...

    def body(self, index: int, *, model: str, endpoint: EndpointName) -> dict[str, Any]:
        """The JSON body of one request; a greedy one has no seed."""
        text = self.prompts[index % len(self.prompts)]
        prompt = {"messages": [{"role": "user", "content": text}]}
        seeds = {"seed": self.seed + index} if self.fields.get("temperature") else {}
        return {
            "model": model,
            **(prompt if endpoint == "chat" else {"prompt": text}),
            "stream": True,
            "stream_options": {"include_usage": True},
            **seeds,
            **self.fields,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadArgs:
    """One run."""

    endpoint: Endpoint
    models: tuple[str, ...]  # empty: the server's own
    questions: LoadQuestions
    pattern: Pattern
    slo: Slo
    num_warm_up: int


def parse_base_url(text: str) -> str:
    """The address without /v1, which OpenAI's clients include."""
    try:
        parts = urlsplit(text)
        is_good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # of a port that is no number
        is_good = False
    if not is_good:
        raise ConfigError(f"--base-url must look like http://127.0.0.1:8000, got {text!r}")
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


def choose_pattern(*, rate: float | None, concurrency: int | None, seed: int) -> Pattern:
    """The given pattern; without one, a closed loop of 16 clients."""
    if rate is not None and concurrency is not None:
        raise ConfigError("--rate and --concurrency exclude each other; give one of them")
    if rate is None:
        return ClosedLoop(concurrency=_CONCURRENCY if concurrency is None else concurrency)
    if not 0 < rate < float("inf"):
        raise ConfigError(f"--rate must be a number above 0, got {rate:g}")
    return OpenLoop(rate=rate, seed=seed)


def parse_extra(text: str) -> dict[str, Any]:
    """Further fields of the body; fields that flags set are refused."""
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--extra-body is not JSON ({error}); quote it for the shell") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"--extra-body must be a JSON object, got {text}")
    taken = [name for name in _OURS if name in fields]
    if taken:
        raise ConfigError(f"--extra-body must not set {', '.join(taken)}; the flags do")
    return fields
