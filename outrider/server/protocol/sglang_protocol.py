"""SGLang's own `/generate`: the request, and the answer with its `meta_info`."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from outrider.errors import RequestError
from outrider.frontend.prompts import TextPrompt, TokenPrompt
from outrider.frontend.request_state import OutputState, RequestState
from outrider.frontend.sampling_params import MAX_LOGPROBS, SamplingParams, override
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer
from outrider.server.http_errors import unsupported
from outrider.server.protocol.completions_protocol import MAX_PROMPTS, TokenIds
from outrider.server.protocol.logprobs_protocol import finite
from outrider.server.protocol.sampling_fields import refuse
from outrider.wire.step_result import TokenLogprobs

Json = dict[str, Any]

# SGLang's words for ours.
_NAMES = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "sampling_seed": "seed",
    "no_stop_trim": "include_stop_str_in_output",
}
_FORMS = {
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    "structural_tag": "structural_tag",
}
_INERT = frozenset({"spaces_between_special_tokens"})
_NOT_YET = ("custom_params", "stop_regex")
_DEFAULT_TOKENS = 128

Count = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]


class GenerateRequest(BaseModel):
    """One prompt or several, as text or as ids."""

    model_config = ConfigDict(strict=True, extra="forbid")

    text: str | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)] | None = None
    input_ids: (
        TokenIds | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS)] | None
    ) = None
    sampling_params: Json | list[Json] | None = None
    # One for all prompts, or one for each.
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: int | list[int] | None = None  # -1: the prompt is not scored
    top_logprobs_num: Count | list[Count] | None = None
    token_ids_logprob: list[int] | list[list[int] | None] | None = None
    return_text_in_logprobs: bool | None = None  # they always have it here
    stream: bool | None = None
    rid: str | list[str] | None = None
    priority: int | None = None
    speculative: bool | str | Json | None = None  # ours
    # refused when they ask for something
    return_hidden_states: bool | None = None
    image_data: Any = None
    lora_path: Any = None

    def check(self) -> None:
        """Refuse what is not there, by name."""
        refuse(self, ("return_hidden_states", "image_data", "lora_path"))
        if (self.text is None) == (self.input_ids is None):
            raise RequestError("give either text or input_ids")

    @property
    def is_single(self) -> bool:
        """Whether the answer is one object instead of a list."""
        asked: Any = self.text if self.input_ids is None else self.input_ids
        return isinstance(asked, str) or isinstance(asked[0], int)

    @property
    def prompts(self) -> list[TextPrompt | TokenPrompt]:
        if self.input_ids is None:
            texts: Any = [self.text] if self.is_single else self.text
            return [TextPrompt(text) for text in texts]
        ids: Any = [self.input_ids] if self.is_single else self.input_ids
        return [TokenPrompt(tuple(each)) for each in ids]

    def params(self) -> list[SamplingParams]:
        """One set of parameters per prompt."""
        num_prompts = len(self.prompts)
        asked = _each("sampling_params", self.sampling_params or {}, num_prompts)
        reports = self._reports(num_prompts)
        return [self._params(one, report) for one, report in zip(asked, reports, strict=True)]

    def _reports(self, num_prompts: int) -> list[Json]:
        """Which log-probabilities each prompt's request reports."""
        named = self.token_ids_logprob
        is_one = not named or isinstance(named[0], int)
        columns = zip(
            _each("return_logprob", self.return_logprob, num_prompts),
            _each("logprob_start_len", self.logprob_start_len, num_prompts),
            _each("top_logprobs_num", self.top_logprobs_num, num_prompts),
            [named] * num_prompts if is_one else _each("token_ids_logprob", named, num_prompts),
            strict=True,
        )
        return [_report(*column) if column[0] else {} for column in columns]

    def _params(self, asked: Json, report: Json) -> SamplingParams:
        for name in _NOT_YET:
            if asked.get(name):
                raise unsupported(f"sampling_params.{name}", name)
        known = {name: value for name, value in asked.items() if name not in (*_NOT_YET, *_INERT)}
        form = {_FORMS[name]: known.pop(name) for name in _FORMS if name in known}
        given = {_NAMES.get(name, name): value for name, value in known.items()}
        if any(value is not None for value in form.values()):
            given["structured"] = form
        defaults = SamplingParams(
            max_tokens=_DEFAULT_TOKENS, speculation=self.speculative, priority=self.priority or 0
        )
        return override(
            defaults, {name: v for name, v in (given | report).items() if v is not None}
        )


def _each(name: str, asked: Any, num_prompts: int) -> list[Any]:
    """A value for every prompt, where one may have been given for all."""
    if not isinstance(asked, list):
        return [asked] * num_prompts
    if len(asked) != num_prompts:
        raise RequestError(f"{len(asked)} {name} for {num_prompts} prompts")
    return asked


def _report(_: bool, start: int | None, top: int | None, named: list[int] | None) -> Json:
    """SGLang's list of the prompt begins at `start`, of whose token it says nothing."""
    if start is not None and start < -1:
        raise RequestError(f"logprob_start_len must be at least -1, got {start}")
    report: Json = {"logprobs": top or 0, "logprob_token_ids": named}
    if start is None or start < 0:
        return report
    return report | {"prompt_logprobs": top or 0, "prompt_logprobs_start": start + 1}


def generated(
    live: RequestState, index: int, tokenizer: Tokenizer | NoTokenizer, *, name: str
) -> Json:
    """One output so far, as SGLang writes it down."""
    mine, usage = live.outputs[index], live.usage
    progress, tokens = mine.progress, mine.token_ids
    meta: Json = {
        "id": name,
        "finish_reason": _reason(mine),
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": len(tokens),
        "cached_tokens": usage.cached_tokens,
        "e2e_latency": live.timing.total_s,
        "spec_verify_ct": progress.rounds,
        "spec_accept_length": len(tokens) / max(1, progress.rounds),
        "spec_accept_rate": progress.num_accepted / max(1, progress.drafted),
        "seed": live.prepared.samplings[index].seed,
    }
    if live.prepared.params.logprobs is not None:
        meta |= _listed("output", tokens, mine.logprobs, live.prepared.params, tokenizer)
        meta |= _of_prompt(live, mine, tokenizer)
    return {"text": mine.text, "output_ids": tokens, "meta_info": meta}


def _reason(mine: OutputState) -> Json | None:
    match mine.ending.finish:
        case "running":
            return None
        case "length":
            return {"type": "length", "length": len(mine.token_ids)}
        case "stop":
            return {"type": "stop", "matched": mine.matched}
    return {"type": mine.ending.finish}


def _of_prompt(live: RequestState, mine: OutputState, tokenizer: Tokenizer | NoTokenizer) -> Json:
    """The prompt from the token before the first that was scored."""
    params = live.prepared.params
    if params.prompt_logprobs is None:
        return _listed("input", [], [], params, tokenizer)
    tokens = list(live.prepared.prompt[params.prompt_logprobs_start - 1 :])
    listed = _listed("input", tokens[1:], mine.prompt_logprobs, params, tokenizer)
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
    """One entry per token: (logprob, id, text), for itself, the likeliest and those named."""

    def triple(value: float, token: int) -> tuple[float, int, str]:
        return finite(value), token, tokenizer.token_text(token)

    pairs = zip(tokens, reported, strict=False)  # of a prompt that still runs nothing is known
    named = params.logprob_token_ids or ()
    return {
        f"{side}_token_logprobs": [triple(at.chosen, token) for token, at in pairs],
        f"{side}_top_logprobs": [[triple(v, token) for token, v in at.top] for at in reported],
        f"{side}_token_ids_logprobs": [
            [triple(value, token) for token, value in zip(named, at.named, strict=True)]
            for at in reported
        ],
    }
