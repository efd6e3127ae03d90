"""The engine as the front sees it: the same port as in one process, with a worker behind it."""

import time
from collections.abc import Callable
from concurrent.futures import Future

from outrider.engine.admission import check_request
from outrider.errors import CapacityError
from outrider.server.metrics import Meter
from outrider.server.worker_messages import Abort, Down, Submit
from outrider.structured.grammar_bounds import check_bounds
from outrider.structured.grammar_cache import Grammars
from outrider.wire.grammar_spec import GrammarSpec
from outrider.wire.runner_facts import RunnerFacts
from outrider.wire.submission import NOTHING_YET, Limits, RequestUpdate, Submission

# A request that has not begun to answer is tried again when its worker dies, but not for ever: it
# may be what the workers die of.
_MOST_ATTEMPTS = 2

_GONE = "the engine's process ended while it was answering and is being restarted; try again"


class _Flight:
    """One submission with the worker, and how far it is."""

    def __init__(self, submission: Submission) -> None:
        self.submission = submission
        self.progress = NOTHING_YET
        self.queued_s = 0.0
        self.num_tokens = 0
        self.num_attempts = 0
        self.last_s = time.perf_counter()

    @property
    def may_begin_again(self) -> bool:
        return not self.num_tokens and self.num_attempts < _MOST_ATTEMPTS


class RemoteEngine:
    """Owns what was submitted and has not ended; without a worker it is kept for the next one.

    It alone bounds the queue: the worker takes whatever comes.
    """

    def __init__(
        self, facts: RunnerFacts, *, grammars: Grammars, max_queued: int, meter: Meter
    ) -> None:
        self._facts = facts
        self._grammars = grammars  # of our own: what is refused here never reaches the worker
        self._room = facts.host.max_rows + max_queued
        self._meter = meter
        self._flights: dict[str, _Flight] = {}
        self._inbox: list[RequestUpdate] = []
        self._senders: list[Callable[[Down], None]] = []  # one, or none while there is no worker

    @property
    def facts(self) -> RunnerFacts:
        return self._facts

    @property
    def max_context(self) -> int:
        return self._facts.host.max_context

    @property
    def vocab_size(self) -> int:
        return self._facts.vocab_size

    @property
    def has_work(self) -> bool:
        return bool(self._flights)

    @property
    def has_worker(self) -> bool:
        return bool(self._senders)

    @property
    def room(self) -> int:
        """Requests that may be held at the same time."""
        return self._room

    @property
    def num_flights(self) -> int:
        return len(self._flights)

    def check(self, prompt: tuple[int, ...], limits: Limits) -> None:
        check_request(prompt, limits, self._facts)

    def check_grammar(self, spec: GrammarSpec) -> None:
        """Refuse what is wrong at first sight; the rest is known when `compile_grammar` is done.

        Nothing is ordered yet: a call with many grammars would fill the order book by itself.
        """
        check_bounds(spec)

    def compile_grammar(self, spec: GrammarSpec) -> "Future[str]":
        """The grammar on its way, which may take seconds, or its refusal."""
        return self._grammars.compile(spec)

    def add(self, submission: Submission) -> None:
        if len(self._flights) >= self._room:
            raise CapacityError(
                f"{len(self._flights)} requests are running or waiting already; try again later"
            )
        flight = _Flight(submission)
        self._flights[submission.request_id] = flight
        self._submit(flight)

    def abort(self, request_id: str) -> None:
        if self._flights.pop(request_id, None) is not None:
            self.send(Abort(request_id))

    def step(self) -> tuple[RequestUpdate, ...]:
        """What has arrived since the last call."""
        updates, self._inbox = tuple(self._inbox), []
        return updates

    def send(self, message: Down) -> None:
        for send in self._senders:
            send(message)

    def attach(self, send: Callable[[Down], None]) -> None:
        """There is a worker: it gets everything that waits."""
        self._senders = [send]
        for flight in self._flights.values():
            self._submit(flight)

    def detach(self) -> tuple[str, ...]:
        """The worker is gone: who has begun to answer ends with an error; returns their names."""
        self._senders = []
        lost = [each for each in self._flights.values() if not each.may_begin_again]
        self.take(tuple(_failure(flight) for flight in lost))
        return tuple(flight.submission.request_id for flight in lost)

    def take(self, updates: tuple[RequestUpdate, ...]) -> None:
        """Note the news of requests that somebody still waits for."""
        now_s = time.perf_counter()
        for update in updates:
            flight = self._flights.get(update.request_id)
            if flight is None:
                continue  # it was aborted while a step was in flight
            self._meter.note_update(update, flight.progress, now_s - flight.last_s)
            flight.progress, flight.queued_s = update.progress, update.queued_s
            flight.last_s = now_s
            flight.num_tokens += len(update.tokens)
            self._inbox.append(update)
            if update.finish != "running":
                del self._flights[update.request_id]

    def _submit(self, flight: _Flight) -> None:
        if self._senders:
            flight.num_attempts += 1
            self.send(Submit(flight.submission))


def _failure(flight: _Flight) -> RequestUpdate:
    return RequestUpdate(
        request_id=flight.submission.request_id,
        tokens=(),
        logprobs=(),
        finish="error",
        progress=flight.progress,
        queued_s=flight.queued_s,
        reason=_GONE,
    )
