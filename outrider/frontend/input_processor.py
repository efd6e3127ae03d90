"""From a prompt and sampling parameters to a checked request with complete values."""

import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from outrider.errors import RequestError
from outrider.frontend.call_cost import (
    Admit,
    CallLimits,
    PromptRequest,
    admit_any,
    check_call,
)
from outrider.frontend.continued_message import render_continued
from outrider.frontend.images.image_prompts import TEXT_ONLY, PromptImages
from outrider.frontend.prompts import Message, TextPrompt, TokenPrompt
from outrider.frontend.read_embeds import check_embeds_params
from outrider.frontend.request_state import PreparedRequest
from outrider.frontend.restriction_params import bad_word_tokens
from outrider.frontend.sampling_params import MAX_SEED, SamplingParams
from outrider.frontend.thinking_params import resolve_thinking
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer
from outrider.wire.adapter import NO_ADAPTER, Adapter
from outrider.wire.embedded_span import EmbeddedSpan
from outrider.wire.grammar_spec import NO_GRAMMAR, Grammar, GrammarSpec
from outrider.wire.row_sampling import (
    MAX_BANNED,
    MAX_PREDICTION,
    Ban,
    Filters,
    LogprobsWanted,
    Penalties,
    PromptLogprobs,
    Restrictions,
    RowSampling,
)
from outrider.wire.submission import Limits

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBounds:
    """The limits of a model that every request must respect."""

    max_context: int  # prompt and output together
    vocab_size: int
    eos_ids: frozenset[int]
    special_ids: frozenset[int] = frozenset()


class InputChecks(Protocol):
    """The checks that an engine makes before a request is submitted."""

    @property
    def max_context(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    def check(
        self, prompt: tuple[int, ...], limits: Limits, embeds: Sequence[EmbeddedSpan] = ()
    ) -> None: ...
    def check_grammar(self, spec: GrammarSpec) -> None: ...
    def check_adapter(self, adapter: Adapter) -> None: ...


class InputProcessor:
    """Renders conversations, encodes prompts, and checks requests against the model."""

    def __init__(
        self,
        engine: InputChecks,
        tokenizer: Tokenizer | NoTokenizer,
        images: PromptImages = TEXT_ONLY,
    ) -> None:
        self._engine = engine
        self._images = images
        self.tokenizer = tokenizer
        self.bounds = ModelBounds(
            max_context=engine.max_context,
            vocab_size=engine.vocab_size,
            eos_ids=_within_vocabulary(tokenizer.stop_ids, engine.vocab_size),
            special_ids=tokenizer.special_ids,
        )

    def render(
        self, messages: Sequence[Message], *, continue_final_message: bool = False, **variables: Any
    ) -> TextPrompt:
        """A conversation as the model's chat template writes it, up to the answer."""
        values = {"add_generation_prompt": not continue_final_message, **variables}
        if continue_final_message and values["add_generation_prompt"]:
            raise RequestError(
                "continue_final_message and add_generation_prompt exclude each other; "
                "set add_generation_prompt to false"
            )
        template, taken = self.tokenizer.chat_template, self._images.take(messages)
        if continue_final_message:
            rendered = render_continued(
                lambda marked: template.render(marked, **values), taken.messages
            )
        else:
            rendered = TextPrompt(template.render(taken.messages, **values), add_special=False)
        return replace(rendered, images=taken.images)

    def with_images(self, prompt: TextPrompt | TokenPrompt, urls: Sequence[str]) -> TextPrompt:
        """A text with the images at these URLs, for the placeholders in it."""
        assert isinstance(prompt, TextPrompt), "checked before"
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        return replace(prompt, images=self._images.take([{"content": parts}]).images)

    def encode(self, prompt: TextPrompt | TokenPrompt) -> tuple[int, ...]:
        """The token ids of a prompt."""
        return self._encoded(prompt).token_ids

    def _encoded(self, prompt: TextPrompt | TokenPrompt) -> TokenPrompt:
        if isinstance(prompt, TokenPrompt):
            return prompt
        if not prompt.text:
            raise RequestError("the prompt is empty; give at least one character")
        # Tokenizing megabytes takes seconds; this check takes none.
        if len(prompt.text) > self.bounds.max_context * self.tokenizer.longest_token:
            raise RequestError(
                f"the prompt has {len(prompt.text)} characters, which the context of "
                f"{self.bounds.max_context} tokens cannot hold; shorten it"
            )
        return self.tokenize(prompt)

    def tokenize(self, prompt: TextPrompt) -> TokenPrompt:
        """The tokens of a text and its images, also of one that no context can hold."""
        encode = partial(self.tokenizer.encode, add_special=prompt.add_special)
        if prompt.images:
            return self._images.expand(prompt, encode)
        return TokenPrompt(tuple(encode(prompt.text)))

    def prepare_call(
        self, requests: Sequence[PromptRequest], limits: CallLimits, admit: Admit = admit_any
    ) -> list[PreparedRequest]:
        """Prepare all requests of one call, once their cost is known and there is room for it.

        What images take is known when they are resized.
        """
        cost = check_call(requests, limits, max_context=self.bounds.max_context)
        admit(cost)
        prepared = [
            replace(self.prepare(each.prompt, each.params, each.adapter), transfer=each.transfer)
            for each in requests
        ]
        if cost.image_bytes:
            admit(replace(cost, image_bytes=sum(each.image_bytes for each in prepared)))
        return prepared

    def prepare(
        self,
        prompt: TextPrompt | TokenPrompt,
        params: SamplingParams,
        adapter: Adapter = NO_ADAPTER,
    ) -> PreparedRequest:
        """Check a request against the model, without submitting it."""
        encoded = self._encoded(prompt)
        if encoded.embeds or encoded.images:
            check_embeds_params(params)
        tokens = self._truncate(encoded.token_ids, params)
        if params.stops and isinstance(self.tokenizer, NoTokenizer):
            raise RequestError("stop strings need a tokenizer; use stop_token_ids instead")
        limits = resolve_limits(params, prompt_len=len(tokens), bounds=self.bounds)
        self._engine.check(tokens, limits, encoded.embeds)
        self._engine.check_adapter(adapter)
        if params.grammar_spec.kind != "none":
            self._engine.check_grammar(params.grammar_spec)
        seed = admit_seed(params)
        sampling = replace(
            resolve_sampling(
                params, seed=seed, prompt_len=len(tokens), limits=limits, bounds=self.bounds
            ),
            restrictions=self._restrictions(params, prompt_len=len(tokens)),
            prediction=self._prediction(params),
        )
        allowed = sampling.restrictions.allowed
        if allowed and frozenset(allowed) <= frozenset(sampling.ban.tokens):
            raise RequestError(
                "allowed_token_ids has stop ids only, which min_tokens bans; set min_tokens to 0"
            )
        return PreparedRequest(
            source=prompt,
            prompt=tokens,
            params=params,
            limits=limits,
            samplings=tuple(
                replace(sampling, seed=child_seed(seed, index)) for index in range(params.n)
            ),
            budget=params.draft_budget,
            embeds=encoded.embeds,
            images=encoded.images,
            adapter=adapter,
        )

    def _truncate(self, tokens: tuple[int, ...], params: SamplingParams) -> tuple[int, ...]:
        """The end of the prompt, if the request wants no more of it."""
        most = params.truncate_prompt_tokens
        if most is None:
            return tokens
        if most == -1:  # as many as leave room for the answer
            most = self.bounds.max_context - (params.max_tokens or 1)
        return tokens[-max(most, 1) :]

    def _restrictions(self, params: SamplingParams, *, prompt_len: int) -> Restrictions:
        allowed = tuple(dict.fromkeys(params.allowed_token_ids or ()))
        _check_tokens("allowed_token_ids", allowed, self.bounds.vocab_size)
        return Restrictions(
            allowed=allowed,
            bad_words=bad_word_tokens(params.bad_words or (), self.tokenizer),
            thinking=resolve_thinking(params.thinking, self.tokenizer, prompt_len=prompt_len),
        )

    def _prediction(self, params: SamplingParams) -> tuple[int, ...]:
        """The tokens of the predicted answer; of a long one, no more than drafts come from."""
        if not params.prediction:
            return ()
        text = params.prediction[: MAX_PREDICTION * self.tokenizer.longest_token]
        return tuple(self.tokenizer.encode(text, add_special=False)[:MAX_PREDICTION])


def _within_vocabulary(eos_ids: frozenset[int], vocab_size: int) -> frozenset[int]:
    """The end-of-sequence ids that the model can emit. Others are reported: files can be wrong."""
    outside = sorted(token for token in eos_ids if not 0 <= token < vocab_size)
    if outside:
        _log.warning(
            "ignored end-of-sequence ids %s: the model's vocabulary has %d tokens; fix "
            "eos_token_id in generation_config.json and config.json, or use the tokenizer files "
            "that belong to the model",
            ", ".join(map(str, outside)),
            vocab_size,
        )
    return eos_ids.difference(outside)


def resolve_limits(params: SamplingParams, *, prompt_len: int, bounds: ModelBounds) -> Limits:
    """When the request ends: no later than the end of the context."""
    room = bounds.max_context - prompt_len
    stop_ids = frozenset(params.stop_token_ids or ())
    _check_tokens("stop_token_ids", tuple(stop_ids), bounds.vocab_size)
    return Limits(
        max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
        stop_ids=stop_ids if params.ignore_eos else stop_ids | bounds.eos_ids,
    )


def resolve_sampling(
    params: SamplingParams, *, seed: int, prompt_len: int, limits: Limits, bounds: ModelBounds
) -> RowSampling:
    """The sampling of one row; `min_tokens` becomes a ban of the stop ids before a position."""
    bias = params.bias_entries
    _check_tokens("logit_bias", tuple(token for token, _ in bias), bounds.vocab_size)
    return RowSampling(
        seed=seed,
        temperature=float(params.temperature),
        filters=Filters(
            top_k=min(max(params.top_k, 0), bounds.vocab_size),
            top_p=params.top_p,
            min_p=params.min_p,
        ),
        penalties=Penalties(
            repetition=params.repetition_penalty,
            presence=params.presence_penalty,
            frequency=params.frequency_penalty,
        ),
        bias=bias,
        ban=_ban(min(params.min_tokens, limits.max_tokens), prompt_len, limits.stop_ids),
        logprobs=_logprobs(params, bounds),
        trace=params.trace,
        hidden_states=params.hidden_states_mode,
        grammar=_grammar(params, bounds),
    )


def _logprobs(params: SamplingParams, bounds: ModelBounds) -> LogprobsWanted:
    named = tuple(params.logprob_token_ids or ())
    _check_tokens("logprob_token_ids", named, bounds.vocab_size)
    return LogprobsWanted(
        chosen=params.logprobs is not None,
        top=min(params.logprobs or 0, bounds.vocab_size),
        named=named,
        prompt=PromptLogprobs(
            is_wanted=params.prompt_logprobs is not None,
            first=params.prompt_logprobs_start,
            top=min(params.prompt_logprobs or 0, bounds.vocab_size),
        ),
    )


def _ban(min_tokens: int, prompt_len: int, stop_ids: frozenset[int]) -> Ban:
    if not min_tokens or not stop_ids:
        return Ban()
    if len(stop_ids) > MAX_BANNED:
        raise RequestError(
            f"min_tokens works with at most {MAX_BANNED} stop ids, got {len(stop_ids)}; drop some"
        )
    return Ban(before=prompt_len + min_tokens, tokens=tuple(sorted(stop_ids)))


def _grammar(params: SamplingParams, bounds: ModelBounds) -> Grammar:
    """The form of the answer, and the tokens that may end it where it is complete.

    A stop id that spells something is an ordinary token of the answer, which the engine ends there.
    """
    spec = params.grammar_spec
    if spec.kind == "none":
        return NO_GRAMMAR
    stop_ids = frozenset(params.stop_token_ids or ())
    ends = bounds.eos_ids | (stop_ids & bounds.special_ids) or stop_ids
    if not ends:
        raise RequestError(
            "structured output must be able to end, and the model has no end-of-sequence token; "
            "give stop_token_ids"
        )
    return Grammar(spec=spec, ends=tuple(sorted(ends)))


def admit_seed(params: SamplingParams) -> int:
    """The user's seed, or a random one short enough to be read out and typed in again."""
    if params.seed is None or params.seed == -1:
        return secrets.randbits(32)
    return params.seed


def child_seed(seed: int, index: int) -> int:
    """The seed of output `index` of one request: the seed itself, then mixes of (seed, index)."""
    if index == 0:
        return seed
    # The finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection that scatters close inputs.
    word = 2**64 - 1
    mixed = (seed + index * 0x9E3779B97F4A7C15) & word
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & word
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & word
    return (mixed ^ (mixed >> 31)) & MAX_SEED


def _check_tokens(name: str, tokens: tuple[int, ...], vocab_size: int) -> None:
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise RequestError(
                f"{name} holds token {token}, outside the vocabulary; "
                f"use ids from 0 to {vocab_size - 1}"
            )
