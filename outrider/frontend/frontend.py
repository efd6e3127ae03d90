"""Between people and the engine: prompts become submissions, updates become outputs."""

import itertools
from collections.abc import Sequence
from typing import Any, Protocol

from outrider.errors import RequestError
from outrider.frontend.interrupts import held_interrupts
from outrider.frontend.live_request import LiveRequest, PreparedRequest
from outrider.frontend.output_text import OutputText
from outrider.frontend.prompts import Message, TextPrompt, TokenPrompt
from outrider.frontend.resolve_params import (
    ModelBounds,
    admit_seed,
    child_seed,
    resolve_limits,
    resolve_sampling,
)
from outrider.frontend.sampling_params import SamplingParams
from outrider.frontend.speculation_params import parse_speculation
from outrider.frontend.structured_params import parse_structured
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer
from outrider.frontend.transcript import StopRules, Transcript
from outrider.wire.grammar_spec import GrammarSpec
from outrider.wire.row_sampling import RowSampling
from outrider.wire.submission import Limits, RequestUpdate, Submission


class EnginePort(Protocol):
    """What the front end needs of an engine, in this process or another."""

    @property
    def max_context(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def has_work(self) -> bool: ...
    def check(self, prompt: tuple[int, ...], limits: Limits) -> None: ...
    def check_grammar(self, spec: GrammarSpec) -> None: ...
    def add(self, submission: Submission) -> None: ...
    def abort(self, request_id: str) -> None: ...
    def step(self) -> tuple[RequestUpdate, ...]: ...


class Frontend:
    """Owns every live request of one engine. Callers hold them and step until theirs is done."""

    def __init__(self, engine: EnginePort, tokenizer: Tokenizer | NoTokenizer) -> None:
        self._engine = engine
        self._ids = itertools.count()
        self._live: dict[str, tuple[LiveRequest, int]] = {}  # by the id the engine knows
        self.tokenizer = tokenizer
        self.bounds = ModelBounds(
            max_context=engine.max_context,
            vocab_size=engine.vocab_size,
            eos_ids=tokenizer.stop_ids,
            special_ids=tokenizer.special_ids,
        )

    @property
    def is_idle(self) -> bool:
        """Whether the engine has nothing left to do for anybody."""
        return not self._live and not self._engine.has_work

    def render(self, messages: Sequence[Message], **variables: Any) -> TextPrompt:
        """A conversation as the model's chat template writes it, up to the answer."""
        values = {"add_generation_prompt": True, **variables}
        text = self.tokenizer.chat_template.render(messages, **values)
        return TextPrompt(text, add_special=False)

    def encode(self, prompt: TextPrompt | TokenPrompt) -> tuple[int, ...]:
        """The token ids of a prompt."""
        if isinstance(prompt, TokenPrompt):
            return prompt.token_ids
        if not prompt.text:
            raise RequestError("the prompt is empty; give at least one character")
        # Tokenising megabytes takes seconds, and this needs none of them.
        if len(prompt.text) > self.bounds.max_context * self.tokenizer.longest_token:
            raise RequestError(
                f"the prompt has {len(prompt.text)} characters, which the context of "
                f"{self.bounds.max_context} tokens cannot hold; shorten it"
            )
        return tuple(self.tokenizer.encode(prompt.text, add_special=prompt.add_special))

    def prepare(self, prompt: TextPrompt | TokenPrompt, params: SamplingParams) -> PreparedRequest:
        """Check a request against the model, without submitting it."""
        tokens = self.encode(prompt)
        if params.stops and isinstance(self.tokenizer, NoTokenizer):
            raise RequestError("stop strings need a tokenizer; use stop_token_ids instead")
        limits = resolve_limits(params, prompt_len=len(tokens), bounds=self.bounds)
        self._engine.check(tokens, limits)
        spec = parse_structured(params.structured)
        if spec.kind != "none":
            self._engine.check_grammar(spec)
        seed = admit_seed(params)
        return PreparedRequest(
            text=prompt.text if isinstance(prompt, TextPrompt) else None,
            prompt=tokens,
            params=params,
            limits=limits,
            samplings=tuple(
                resolve_sampling(
                    params,
                    seed=child_seed(seed, index),
                    prompt_len=len(tokens),
                    limits=limits,
                    bounds=self.bounds,
                )
                for index in range(params.n)
            ),
            budget=parse_speculation(params.speculation),
        )

    def submit(self, prepared: PreparedRequest) -> LiveRequest:
        """Hand a request to the engine: all of its outputs, or none when one is refused."""
        live = self._open(prepared)
        try:
            with held_interrupts():
                for index, sampling in enumerate(prepared.samplings):
                    self._add(live, index, sampling)
        except BaseException:  # an interrupt, too, must not leave a request that nobody holds
            self.abort(live)
            raise
        return live

    def step(self) -> None:
        """Run one step of the engine and deliver what it says."""
        with held_interrupts():
            for update in self._engine.step():
                self._deliver(update)

    def abort(self, live: LiveRequest) -> None:
        """End a request now; what it has said so far stays readable."""
        for index, transcript in enumerate(live.transcripts):
            if self._live.pop(_engine_id(live, index), None) is not None:
                self._engine.abort(_engine_id(live, index))
                transcript.abort()

    def _open(self, prepared: PreparedRequest) -> LiveRequest:
        rules = StopRules(
            named=_named_stop_ids(prepared.params, self.bounds.eos_ids),
            is_shown=prepared.params.include_stop_str_in_output,
        )
        transcripts = tuple(
            Transcript(OutputText(self.tokenizer, prepared.params, prompt=prepared.prompt), rules)
            for _ in prepared.samplings
        )
        return LiveRequest(str(next(self._ids)), prepared, transcripts, self.tokenizer)

    def _add(self, live: LiveRequest, index: int, sampling: RowSampling) -> None:
        name = _engine_id(live, index)
        self._engine.add(
            Submission(
                request_id=name,
                prompt=live.prepared.prompt,
                sampling=sampling,
                limits=live.prepared.limits,
                budget=live.prepared.budget,
                priority=live.prepared.params.priority,
            )
        )
        self._live[name] = (live, index)

    def _deliver(self, update: RequestUpdate) -> None:
        if update.request_id not in self._live:
            return  # it ended here, by a stop string or an abort, while a step was in flight
        live, index = self._live[update.request_id]
        live.push(index, update)
        if live.transcripts[index].is_finished:
            del self._live[update.request_id]
            if update.finish == "running":  # a stop string: the engine does not know yet
                self._engine.abort(update.request_id)


def owner_of(engine_id: str) -> str:
    """The request whose output the engine knows by this id."""
    return engine_id.rpartition("-")[0]


def _engine_id(live: LiveRequest, index: int) -> str:
    return f"{live.request_id}-{index}"


def _named_stop_ids(params: SamplingParams, eos_ids: frozenset[int]) -> frozenset[int]:
    """Ids reported as the stop reason: an end of sequence that nobody ignores needs no name."""
    asked = frozenset(params.stop_token_ids or ())
    return asked if params.ignore_eos else asked - eos_ids
