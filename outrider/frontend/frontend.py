"""Between users and the engine: prompts become submissions, updates become outputs."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from outrider.errors import RequestError
from outrider.frontend.interrupts import held_interrupts
from outrider.frontend.prompts import Message, TextPrompt, TokenPrompt
from outrider.frontend.request_state import PreparedRequest, RequestState
from outrider.frontend.resolve_params import (
    ModelBounds,
    admit_seed,
    child_seed,
    resolve_limits,
    resolve_sampling,
)
from outrider.frontend.sampling_params import SamplingParams
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer
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
    """Owns every running request of one engine. Callers hold them and step until theirs is done."""

    def __init__(self, engine: EnginePort, tokenizer: Tokenizer | NoTokenizer) -> None:
        self._engine = engine
        self._ids = itertools.count()
        self._requests: dict[str, tuple[RequestState, int]] = {}  # by the id the engine knows
        self.tokenizer = tokenizer
        self.bounds = ModelBounds(
            max_context=engine.max_context,
            vocab_size=engine.vocab_size,
            eos_ids=tokenizer.stop_ids,
            special_ids=tokenizer.special_ids,
        )

    @property
    def is_idle(self) -> bool:
        """Whether no request is running here or in the engine."""
        return not self._requests and not self._engine.has_work

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
        if params.grammar_spec.kind != "none":
            self._engine.check_grammar(params.grammar_spec)
        seed = admit_seed(params)
        sampling = resolve_sampling(
            params, seed=seed, prompt_len=len(tokens), limits=limits, bounds=self.bounds
        )
        return PreparedRequest(
            text=prompt.text if isinstance(prompt, TextPrompt) else None,
            prompt=tokens,
            params=params,
            limits=limits,
            samplings=tuple(
                replace(sampling, seed=child_seed(seed, index)) for index in range(params.n)
            ),
            budget=params.draft_budget,
        )

    def submit(self, prepared: PreparedRequest) -> RequestState:
        """Hand a request to the engine: all of its outputs, or none when one is refused."""
        request = RequestState(str(next(self._ids)), prepared, self.tokenizer)
        try:
            with held_interrupts():
                for index, sampling in enumerate(prepared.samplings):
                    self._add(request, index, sampling)
        except BaseException:  # an interrupt, too, must not leave a request without an owner
            self.abort(request)
            raise
        return request

    def step(self) -> None:
        """Run one step of the engine and deliver its updates."""
        with held_interrupts():
            self._deliver(self._engine.step())

    def deliver(self, updates: Sequence[RequestUpdate]) -> None:
        """Add the updates of an engine that another process steps to the outputs they belong to."""
        with held_interrupts():
            self._deliver(updates)

    def abort(self, request: RequestState) -> None:
        """End a request now; its output so far stays readable."""
        for index, output in enumerate(request.outputs):
            if self._requests.pop(_engine_id(request, index), None) is not None:
                self._engine.abort(_engine_id(request, index))
                output.abort()

    def _add(self, request: RequestState, index: int, sampling: RowSampling) -> None:
        name = _engine_id(request, index)
        self._engine.add(
            Submission(
                request_id=name,
                prompt=request.prepared.prompt,
                sampling=sampling,
                limits=request.prepared.limits,
                budget=request.prepared.budget,
                priority=request.prepared.params.priority,
            )
        )
        self._requests[name] = (request, index)

    def _deliver(self, updates: Sequence[RequestUpdate]) -> None:
        for update in updates:
            if update.request_id not in self._requests:
                continue  # it ended here, by a stop string or an abort, while a step was in flight
            request, index = self._requests[update.request_id]
            request.push(index, update)
            if request.outputs[index].is_finished:
                del self._requests[update.request_id]
                if update.finish == "running":  # a stop string: the engine does not know yet
                    self._engine.abort(update.request_id)


def owner_of(engine_id: str) -> str:
    """The request whose output the engine knows by this id."""
    return engine_id.rpartition("-")[0]


def _engine_id(request: RequestState, index: int) -> str:
    return f"{request.request_id}-{index}"
