"""Between users and the engine: submits prepared requests and delivers updates to them."""

import itertools
from collections.abc import Sequence
from typing import Protocol

from outrider.frontend.input_processor import InputChecks, InputProcessor
from outrider.frontend.interrupts import held_interrupts
from outrider.frontend.request_state import PreparedRequest, RequestState
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer
from outrider.wire.row_sampling import RowSampling
from outrider.wire.submission import RequestUpdate, Submission


class EnginePort(InputChecks, Protocol):
    """What the front end needs of an engine, in this process or another."""

    @property
    def has_work(self) -> bool: ...
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
        self.inputs = InputProcessor(engine, tokenizer)

    @property
    def is_idle(self) -> bool:
        """Whether no request is running here or in the engine."""
        return not self._requests and not self._engine.has_work

    def submit(self, prepared: PreparedRequest) -> RequestState:
        """Hand a request to the engine: all of its outputs, or none when one is refused."""
        request = RequestState(str(next(self._ids)), prepared, self.tokenizer)
        try:
            with held_interrupts():
                for index, sampling in enumerate(prepared.samplings):
                    self._add(request, index, sampling)
        except BaseException:  # also after an interrupt no request may run unseen
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
                cache_salt=request.prepared.params.cache_salt,
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


def request_id_of(engine_id: str) -> str:
    """The id of the request that an output of the engine belongs to."""
    return engine_id.rpartition("-")[0]


def _engine_id(request: RequestState, index: int) -> str:
    return f"{request.request_id}-{index}"
