"""SGLang's own `/generate`: the request, and the answer with its `meta_info`."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from outrider.api.live import LiveRequest
from outrider.api.params import MAX_LOGPROBS, SamplingParams, override
from outrider.api.prompts import TextPrompt, TokenPrompt
from outrider.api.transcript import Ending
from outrider.errors import RequestError
from outrider.serve.errors import unsupported
from outrider.serve.protocol.completions import MAX_PROMPTS, TokenIds
from outrider.serve.protocol.logprobs import finite
from outrider.text.tokenizer import NoTokenizer, Tokenizer
from outrider.wire.result import TokenLogprobs

Json = dict[str, Any]

# SGLang's words for ours.
_NAMES = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "sampling_seed": "seed",
    "no_stop_trim": "include_stop_str_in_output",
}
_INERT = frozenset({"spaces_between_special_tokens"})
_NOT_YET = ("json_schema", "regex", "ebnf", "structural_tag", "custom_params", "stop_regex")
_DEFAULT_TOKENS = 128


class GenerateRequest(BaseModel):
    """One prompt or several, as text or as ids."""

    model_config = ConfigDict(strict=True, extra="forbid")

    text: str | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)] | None = None
    input_ids: (
        TokenIds | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS)] | None
    ) = None
    sampling_params: Json | list[Json] | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    return_text_in_logprobs: bool | None = None
    stream: bool | None = None
    rid: str | list[str] | None = None
    speculative: bool | str | Json | None = None  # ours
    # refused when they ask for something
    token_ids_logprob: Any = None
    return_hidden_states: bool | None = None
    image_data: Any = None
    lora_path: Any = None

    def check(self) -> None:
        """Refuse what is not there, by name."""
        for name in ("token_ids_logprob", "return_hidden_states", "image_data", "lora_path"):
            if getattr(self, name):
                raise unsupported(name, name)
        if self.return_logprob and self.logprob_start_len not in (None, -1):
            raise unsupported("logprob_start_len", "logprobs of the prompt")
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
        asked, num_prompts = self.sampling_params or {}, len(self.prompts)
        each = asked if isinstance(asked, list) else [asked] * num_prompts
        if len(each) != num_prompts:
            raise RequestError(f"{len(each)} sampling_params for {num_prompts} prompts")
        return [self._params(one) for one in each]

    def _params(self, asked: Json) -> SamplingParams:
        for name in _NOT_YET:
            if asked.get(name):
                raise unsupported(f"sampling_params.{name}", name)
        known = {name: value for name, value in asked.items() if name not in (*_NOT_YET, *_INERT)}
        given = {_NAMES.get(name, name): value for name, value in known.items()}
        logprobs = (self.top_logprobs_num or 0) if self.return_logprob else None
        defaults = SamplingParams(
            max_tokens=_DEFAULT_TOKENS, logprobs=logprobs, speculation=self.speculative
        )
        return override(defaults, {name: v for name, v in given.items() if v is not None})


def generated(
    live: LiveRequest, index: int, tokenizer: Tokenizer | NoTokenizer, *, name: str
) -> Json:
    """One output so far, as SGLang writes it down."""
    mine, usage = live.transcripts[index], live.usage
    progress, tokens = mine.progress, mine.token_ids
    meta: Json = {
        "id": name,
        "finish_reason": _reason(mine.ending, tokens),
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": len(tokens),
        "cached_tokens": usage.cached_tokens,
        "e2e_latency": live.timing.total_s,
        "spec_verify_ct": progress.rounds,
        "spec_accept_length": len(tokens) / max(1, progress.rounds),
        "spec_accept_rate": progress.kept / max(1, progress.drafted),
        "seed": live.prepared.samplings[index].seed,
    }
    if live.prepared.params.logprobs is not None:
        meta |= _logprobs(tokens, mine.logprobs, tokenizer)
    return {"text": mine.text, "output_ids": tokens, "meta_info": meta}


def _reason(ending: Ending, tokens: list[int]) -> Json | None:
    """SGLang names the end-of-sequence token, too, which we have no stop reason for."""
    if ending.finish == "running":
        return None
    if ending.finish == "length":
        return {"type": "length", "length": len(tokens)}
    if ending.finish == "stop":
        return {"type": "stop", "matched": tokens[-1] if ending.stop is None else ending.stop}
    return {"type": ending.finish}


def _logprobs(
    tokens: list[int], reported: list[TokenLogprobs], tokenizer: Tokenizer | NoTokenizer
) -> Json:
    text = tokenizer.token_text
    pairs = list(zip(tokens, reported, strict=True))
    return {
        "input_token_logprobs": [],
        "output_token_logprobs": [(finite(at.chosen), token, text(token)) for token, at in pairs],
        "output_top_logprobs": [
            [(finite(value), token, text(token)) for token, value in at.top] for at in reported
        ],
    }
