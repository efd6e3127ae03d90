"""`/v1/completions`: the request, and the answer, whole or in chunks."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from outrider.errors import RequestError
from outrider.frontend.prompts import TextPrompt, TokenPrompt, embedded_prompt
from outrider.frontend.sampling_params import MAX_LOGPROBS, SamplingParams
from outrider.server.protocol.embeds_body import decode_embeds
from outrider.server.protocol.logprobs_protocol import CompletionLogprobs, PromptReport
from outrider.server.protocol.sampling_fields import ReportFields
from outrider.server.protocol.usage_fields import AnswerMetrics, UsageFields

MAX_PROMPTS = 1024
MAX_BEST_OF = 128

_DEFAULTS = SamplingParams()

TokenIds = Annotated[list[int], Field(min_length=1, fail_fast=True)]
Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
TokenLists = Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]


class CompletionRequest(ReportFields):
    """OpenAI's fields, and the extensions. Several prompts make several sets of choices."""

    prompt: str | TokenIds | Texts | TokenLists | None = None
    # vLLM's: base64 of tensors; their choices come before those of `prompt`
    prompt_embeds: str | Texts | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    add_special_tokens: bool | None = None  # an extension
    response_format: dict[str, Any] | None = None  # as in a chat
    echo: bool | None = None  # repeat the prompt first, with log-probabilities if requested
    best_of: Annotated[int, Field(ge=1, le=MAX_BEST_OF)] | None = None  # answers to choose n from

    def check(self) -> None:
        """Refuse fields that do not fit together."""
        self.check_reports()
        if self.prompt is None and not self.prompt_embeds:
            raise RequestError("a completion needs a prompt, or prompt_embeds")
        if self.prompt_embeds and self.echo:
            raise RequestError("prompt_embeds have no text to echo; set echo to false")
        if self.num_answers < (self.n or 1):
            raise RequestError(f"best_of ({self.best_of}) is less than n; raise it")
        if self.is_chosen and self.stream:
            raise RequestError("best_of chooses among complete answers; set stream to false")

    @property
    def num_answers(self) -> int:
        return self.best_of or self.n or 1

    @property
    def is_chosen(self) -> bool:
        """Whether only the likeliest answers are sent."""
        return self.num_answers > (self.n or 1)

    def params(self) -> SamplingParams:
        length = {} if self.max_tokens is None else {"max_tokens": self.max_tokens}
        scored = [self.prompt_logprobs, self.logprobs if self.echo else None]
        return self.sampling(
            _DEFAULTS,
            n=self.num_answers,
            logprobs=0 if self.is_chosen and self.logprobs is None else self.logprobs,
            return_hidden_states=self.hidden_states_mode,
            prompt_logprobs=max((num for num in scored if num is not None), default=None),
            structured=self.structure(self.response_format),
            **length,
        )

    @property
    def has_embeds(self) -> bool:
        """Whether a prompt is embeddings, which only some servers may read."""
        return bool(self.prompt_embeds)

    @property
    def prompts(self) -> list[TextPrompt | TokenPrompt]:
        """Each prompt, whether one or several were given: embeddings, then text or ids."""
        embeds, given = self.prompt_embeds or [], self.prompt
        listed = [embeds] if isinstance(embeds, str) else embeds
        embedded = [embedded_prompt(decode_embeds(each)) for each in listed]
        if given is None:
            return [*embedded]
        is_one = isinstance(given, str) or isinstance(given[0], int)
        return [*embedded, *[self._prompt(each) for each in ([given] if is_one else given)]]

    def _prompt(self, prompt: Any) -> TextPrompt | TokenPrompt:
        if isinstance(prompt, str):
            return TextPrompt(prompt, add_special=self.add_special_tokens is not False)
        return TokenPrompt(tuple(prompt))


class CompletionChoice(BaseModel):
    """One answer, or a delta of it. Only the last delta has a finish reason and a seed."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None = None
    matched_stop: int | str | None = None
    seed: int | None = None
    prompt_logprobs: PromptReport | None = None  # when requested
    prompt_token_ids: list[int] | None = None  # when requested, in the first delta
    token_ids: list[int] | None = None  # when requested
    # When requested: the last one, or with "all" a list of them.
    hidden_states: list[Any] | None = None


class CompletionAnswer(BaseModel):
    """The whole answer, or one event of a stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageFields | None = None
    metrics: AnswerMetrics | None = None  # when requested
    kv_transfer_params: dict[str, Any] | None = None  # of a prefill server
