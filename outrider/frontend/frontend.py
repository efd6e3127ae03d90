"""Between users and the engine: submits prepared requests and delivers updates to them."""

import itertools
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from outrider.frontend.engine_turns import EngineTurns
from outrider.frontend.images.image_prompts import TEXT_ONLY, PromptImages
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
    """Owns every running request of one engine. Callers hold them and step until theirs is done.

    Callers may be threads: a step of one of them runs the requests of all.
    """

    def __init__(
        self,
        engine: EnginePort,
        tokenizer: Tokenizer | NoTokenizer,
        images: PromptImages = TEXT_ONLY,
    ) -> None:
        self._engine = engine
        self._turns = EngineTurns()
        self._delivery = threading.RLock()  # held while outputs change, and while one is read
        self._reader = 0  # ident of the thread that holds `_delivery` to read; 0: none
        self._deferred: deque[RequestState] = deque()  # to abort when this thread has let go
        self._ids = itertools.count()
        self._requests: dict[str, tuple[RequestState, int]] = {}  # by the id the engine knows
        self.tokenizer = tokenizer
        self.inputs = InputProcessor(engine, tokenizer, images)

    @property
    def is_idle(self) -> bool:
        """Whether no request is running here or in the engine."""
        return not self._requests and not self._engine.has_work

    def submit(self, prepared: PreparedRequest) -> RequestState:
        """Hand a request to the engine: all of its outputs, or none when one is refused."""
        request = RequestState(str(next(self._ids)), prepared, self.tokenizer)
        try:
            with self._turns.between_steps(), held_interrupts():
                for index, sampling in enumerate(prepared.samplings):
                    self._add(request, index, sampling)
                self._abort_all()
        except BaseException:  # also after an interrupt no request may run unseen
            self.abort(request)
            raise
        return request

    def between_steps(self) -> AbstractContextManager[None]:
        """The engine for this thread alone."""
        return self._turns.between_steps()

    @contextmanager
    def emptied(self) -> Iterator[None]:
        """The engine for this thread alone, without requests: they end with what they have."""
        with self._turns.between_steps():
            self._deferred.extend(request for request, _ in self._requests.values())
            self._abort_all()
            yield

    def step(self) -> None:
        """Run one step of the engine and deliver its updates, unless another thread just did."""
        with self._turns.step() as is_ours:
            if is_ours:
                with held_interrupts():
                    self._deliver(self._engine.step())
                    self._abort_all()

    def deliver(self, updates: Sequence[RequestUpdate]) -> None:
        """Add the updates of an engine that another process steps to the outputs they belong to."""
        with held_interrupts():
            self._deliver(updates)

    def abort(self, request: RequestState) -> None:
        """End a request now; its output so far stays readable."""
        if all(_engine_id(request, index) not in self._requests for index in _places(request)):
            return  # it has ended
        self._deferred.append(request)
        # A stream may be collected as garbage inside a step, or while this thread reads another.
        # Waiting for a turn there could last for ever.
        if not self._turns.is_mine and self._reader != threading.get_ident():
            self._abort_deferred()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Inside, no output changes: another thread may step the engine."""
        with self._delivery:
            self._reader = threading.get_ident()
            try:
                yield
            finally:
                self._reader = 0
        if self._deferred:
            self._abort_deferred()

    def _abort_deferred(self) -> None:
        with self._turns.between_steps():
            self._abort_all()

    def _abort_all(self) -> None:
        while self._deferred:
            self._abort(self._deferred.popleft())

    def _abort(self, request: RequestState) -> None:
        with self._delivery:
            for index in _places(request):
                if self._requests.pop(_engine_id(request, index), None) is not None:
                    self._engine.abort(_engine_id(request, index))
                    request.outputs[index].abort()

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
                transfer=request.prepared.transfer,
                embeds=request.prepared.embeds,
                images=request.prepared.images,
                adapter=request.prepared.adapter,
            )
        )
        self._requests[name] = (request, index)

    def _deliver(self, updates: Sequence[RequestUpdate]) -> None:
        with self._delivery:
            for update in updates:
                # Others ended here, by a stop string or an abort, while a step was in flight.
                if update.request_id in self._requests:
                    self._push(update)

    def _push(self, update: RequestUpdate) -> None:
        request, index = self._requests[update.request_id]
        request.push(index, update)
        if request.outputs[index].is_finished:
            del self._requests[update.request_id]
            if update.finish == "running":  # a stop string: the engine does not know yet
                self._engine.abort(update.request_id)


def request_id_of(engine_id: str) -> str:
    """The id of the request that an output of the engine belongs to."""
    return engine_id.rpartition("-")[0]


def _places(request: RequestState) -> range:
    return range(len(request.outputs))


def _engine_id(request: RequestState, index: int) -> str:
    return f"{request.request_id}-{index}"
