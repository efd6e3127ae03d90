"""The engine of another process, with the interface of one in this process."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from outrider.engine.admission import check_request
from outrider.errors import CapacityError
from outrider.server.metrics import Meter
from outrider.server.worker_messages import Abort, Submit, ToWorker
from outrider.structured.grammar_cache import Grammars
from outrider.wire.grammar_spec import GrammarSpec
from outrider.wire.runner_facts import RunnerFacts
from outrider.wire.submission import NOTHING_YET, Limits, RequestUpdate, Submission

# When a worker dies, requests without a token yet are submitted again. Not for ever: one of them
# may be what kills the workers.
_MAX_ATTEMPTS = 2

_GONE = "the engine's process ended while it was answering and is being restarted; try again"


class _InFlight:
    """One submission that has not ended, and its progress."""

    def __init__(self, submission: Submission) -> None:
        self.submission = submission
        self.progress = NOTHING_YET
        self.queued_s = 0.0
        self.num_tokens = 0
        self.num_attempts = 0
        self.last_update_s = time.perf_counter()

    @property
    def may_restart(self) -> bool:
        return not self.num_tokens and self.num_attempts < _MAX_ATTEMPTS


class RemoteEngine:
    """Owns the submissions that have not ended. Without a worker they wait for the next one.

    The queue is bounded here and not in the worker.
    """

    def __init__(
        self, facts: RunnerFacts, *, grammars: Grammars, max_queued: int, meter: Meter
    ) -> None:
        self._facts = facts
        self._grammars = grammars  # of this process: a refused grammar never reaches the worker
        self._max_requests = facts.host.max_rows + max_queued
        self._meter = meter
        self._in_flight: dict[str, _InFlight] = {}  # by request id
        self._send: Callable[[ToWorker], None] | None = None  # while there is no worker

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
        return bool(self._in_flight)

    @property
    def has_worker(self) -> bool:
        return self._send is not None

    @property
    def max_requests(self) -> int:
        """Requests that may run or wait at the same time."""
        return self._max_requests

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    def check(self, prompt: tuple[int, ...], limits: Limits) -> None:
        check_request(prompt, limits, self._facts)

    def check_grammar(self, spec: GrammarSpec) -> None:
        """Do nothing: `compile_grammar` finds what is wrong without blocking a thread."""

    def compile_grammar(self, spec: GrammarSpec) -> "Future[str]":
        """Start to compile a grammar. The future may take seconds, and may hold a refusal."""
        return self._grammars.compile(spec)

    def add(self, submission: Submission) -> None:
        if len(self._in_flight) >= self._max_requests:
            raise CapacityError(
                f"{len(self._in_flight)} requests are running or waiting already; try again later"
            )
        added = _InFlight(submission)
        self._in_flight[submission.request_id] = added
        self._submit(added)

    def abort(self, request_id: str) -> None:
        if self._in_flight.pop(request_id, None) is not None:
            self.send(Abort(request_id))

    def step(self) -> tuple[RequestUpdate, ...]:
        raise AssertionError("the worker steps; its updates come by `receive`")

    def send(self, message: ToWorker) -> None:
        if self._send is not None:
            self._send(message)

    def attach(self, send: Callable[[ToWorker], None]) -> None:
        """Use a new worker: submit everything that waits."""
        self._send = send
        for each in self._in_flight.values():
            self._submit(each)

    def detach(self) -> tuple[RequestUpdate, ...]:
        """Go on without a worker. Requests that had tokens fail: returns their last updates."""
        self._send = None
        lost = [each for each in self._in_flight.values() if not each.may_restart]
        return self.receive(tuple(_failure(each) for each in lost))

    def receive(self, updates: Sequence[RequestUpdate]) -> tuple[RequestUpdate, ...]:
        """Note updates of the worker; returns those of requests that have not been aborted."""
        now_s = time.perf_counter()
        known = []
        for update in updates:
            noted = self._in_flight.get(update.request_id)
            if noted is None:
                continue  # aborted while the step ran
            self._meter.note_update(update, noted.progress, now_s - noted.last_update_s)
            noted.progress, noted.queued_s = update.progress, update.queued_s
            noted.last_update_s = now_s
            noted.num_tokens += len(update.tokens)
            known.append(update)
            if update.finish != "running":
                del self._in_flight[update.request_id]
        return tuple(known)

    def _submit(self, submitted: _InFlight) -> None:
        if self._send is not None:
            submitted.num_attempts += 1
            self._send(Submit(submitted.submission))


def _failure(lost: _InFlight) -> RequestUpdate:
    return RequestUpdate(
        request_id=lost.submission.request_id,
        tokens=(),
        logprobs=(),
        finish="error",
        progress=lost.progress,
        queued_s=lost.queued_s,
        reason=_GONE,
    )
