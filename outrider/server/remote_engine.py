"""The engine of another process, with the interface of one in this process."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

from outrider.engine.admission import check_request
from outrider.errors import CapacityError
from outrider.server.in_flight_request import InFlightRequest
from outrider.server.metrics import Meter
from outrider.server.worker_messages import Abort, StartOver, StepFailed, ToWorker
from outrider.structured.grammar_cache import Grammars
from outrider.wire.adapter import Adapter
from outrider.wire.embedded_span import EmbeddedSpan
from outrider.wire.failure import FailureKind, RequestFailure
from outrider.wire.grammar_spec import GrammarSpec
from outrider.wire.runner_facts import RunnerFacts
from outrider.wire.submission import Limits, RequestUpdate, Submission

# A request that is in lost steps again and again, though it runs well alone, ends at last.
_MAX_LOST_STEPS = 8

_ENDED = "the engine's process ended while it had this request; see the server's log"

_log = logging.getLogger(__name__)


class RemoteEngine:
    """Owns the requests that have not ended. Without a worker they wait for the next one.

    The next worker goes on after the last token that the server has got, so a lost worker changes
    no answer. One of the requests in the lost step may be what killed the worker. Each of these
    runs alone for a few tokens first, while the others wait. If the worker dies again, that request
    ends with an error. The end of a worker outside of a step names no request: when that happens
    twice without an update between, all its requests run alone first.

    The queue is bounded here and not in the worker.
    """

    def __init__(
        self, facts: RunnerFacts, *, grammars: Grammars, max_queued: int, meter: Meter
    ) -> None:
        self._facts = facts
        self._grammars = grammars  # of this process: a refused grammar never reaches the worker
        self._max_requests = facts.host.max_rows + max_queued
        self._meter = meter
        self._in_flight: dict[str, InFlightRequest] = {}  # by request id, in order of arrival
        self._on_trial: InFlightRequest | None = None  # the only request that the worker has
        self._send: Callable[[ToWorker], None] | None = None  # while there is no worker
        self._is_held = False  # requests wait though there is a worker
        self._num_quiet_ends = 0  # workers that ended outside of a step, since the last update

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

    def check(
        self, prompt: tuple[int, ...], limits: Limits, embeds: Sequence[EmbeddedSpan] = ()
    ) -> None:
        check_request(prompt, limits, self._facts, embeds)

    def check_grammar(self, spec: GrammarSpec) -> None:
        """Do nothing: `compile_grammar` finds what is wrong without blocking a thread."""

    def check_adapter(self, adapter: Adapter) -> None:
        """Do nothing: the server checks adapters when they are loaded, and the worker again."""

    def compile_grammar(self, spec: GrammarSpec) -> "Future[str]":
        """Start to compile a grammar. The future may take seconds, and may hold a refusal."""
        return self._grammars.compile(spec)

    def add(self, submission: Submission) -> None:
        if len(self._in_flight) >= self._max_requests:
            raise CapacityError(
                f"{len(self._in_flight)} requests are running or waiting already; try again later"
            )
        added = InFlightRequest(submission)
        self._in_flight[submission.request_id] = added
        if self._send is not None and self._on_trial is None and not self._is_held:
            self._send(added.submit())

    def abort(self, request_id: str) -> None:
        aborted = self._in_flight.pop(request_id, None)
        if aborted is None:
            return
        self.send(Abort(request_id))
        if aborted.is_suspect:
            self._end_trial(aborted)

    def step(self) -> tuple[RequestUpdate, ...]:
        raise AssertionError("the worker steps; its updates come by `receive`")

    def send(self, message: ToWorker) -> None:
        if self._send is not None:
            self._send(message)

    def attach(self, send: Callable[[ToWorker], None]) -> None:
        """Use a new worker: submit what waits."""
        self._send = send
        self._submit_waiting()

    @property
    def num_submitted(self) -> int:
        """Requests that the worker has."""
        return sum(each.is_submitted for each in self._in_flight.values())

    def hold(self) -> None:
        """Submit no request until `resume`; those that the worker has go on."""
        self._is_held = True

    def take_back(self) -> None:
        """The worker has dropped all its requests: they wait with the others."""
        assert self._is_held
        self._on_trial = None
        for each in self._in_flight.values():
            each.is_submitted = False

    def resume(self) -> None:
        """Submit what waits."""
        self._is_held = False
        if self._on_trial is None:
            self._submit_waiting()

    def start_over(self, failed: StepFailed) -> tuple[RequestUpdate, ...]:
        """A step failed, but the worker can go on: as `detach` and `attach`."""
        assert self._send is not None, "a worker sent the message"
        send = self._send
        updates = self._drop_worker(frozenset(failed.request_ids), failed.reason)
        send(StartOver())
        self.attach(send)
        return updates

    def detach(self, lost_steps: frozenset[str]) -> tuple[RequestUpdate, ...]:
        """The worker has ended. `lost_steps` are the requests of the steps that it was running.

        Returns the last updates of requests that end by this, with the reason.
        """
        return self._drop_worker(lost_steps or self._quiet_suspects(), _ENDED)

    def _quiet_suspects(self) -> frozenset[str]:
        """The requests to suspect after the end of a worker that ran no step.

        One such end may be chance. After a second one it was a request that the worker had got.
        """
        submitted = frozenset(name for name, each in self._in_flight.items() if each.is_submitted)
        self._num_quiet_ends += bool(submitted)
        is_chance = self._on_trial is None and self._num_quiet_ends < 2
        return frozenset() if is_chance else submitted

    def _drop_worker(self, lost_steps: frozenset[str], reason: str) -> tuple[RequestUpdate, ...]:
        """Go on without a worker, as if each request had been submitted to none."""
        num_submitted = sum(each.is_submitted for each in self._in_flight.values())
        self._send = self._on_trial = None
        for each in self._in_flight.values():
            each.is_submitted = False
        lost = [self._in_flight[each] for each in lost_steps if each in self._in_flight]
        for each in lost:
            each.is_suspect = True
            each.num_lost_steps += 1
        if lost:
            num_others = len(self._in_flight) - len(lost)
            _log.warning(
                "the lost step ran %d requests; each runs alone for a few tokens before the other "
                "%d go on",
                len(lost_steps),
                num_others,
            )
        # The steps also ran requests that have been aborted since, and others may have been
        # submitted and not in a step yet: one of these may be to blame.
        was_alone = len(lost_steps) == num_submitted == 1
        return self._note(tuple(self._failures(lost, reason, was_alone=was_alone)))

    def receive(self, updates: Sequence[RequestUpdate]) -> tuple[RequestUpdate, ...]:
        """Note updates of the worker; returns those of requests that have not been aborted."""
        self._num_quiet_ends = 0
        return self._note(updates)

    def _note(self, updates: Sequence[RequestUpdate]) -> tuple[RequestUpdate, ...]:
        now_s = time.perf_counter()
        known = []
        for update in updates:
            noted = self._in_flight.get(update.request_id)
            if noted is None:
                continue  # aborted while the step ran
            before, gap_s = noted.progress, now_s - noted.last_update_s
            update = noted.note(update, now_s)
            if update.finish != "running":
                update = self._end(noted, update)
            self._meter.note_update(update, before, gap_s)
            known.append(update)
        return tuple(known)

    def _end(self, noted: InFlightRequest, update: RequestUpdate) -> RequestUpdate:
        """The worker has ended a request; if that was the end of a trial, it goes on later."""
        is_cut = noted is self._on_trial and update.finish == "length"
        if is_cut and not noted.is_complete(self.max_context):
            noted.is_submitted = False
            update = update._replace(finish="running")
        else:
            del self._in_flight[update.request_id]
        if noted is self._on_trial:
            self._end_trial(noted)
        return update

    def _end_trial(self, tried: InFlightRequest) -> None:
        """The request survived, ended, or was aborted."""
        tried.is_suspect = False
        if tried is self._on_trial:
            self._on_trial = None
            self._submit_waiting()

    def _submit_waiting(self) -> None:
        """Submit the next suspect alone; without suspects, all that wait."""
        if self._send is None or self._is_held:
            return
        suspects = (each for each in self._in_flight.values() if each.is_suspect)
        self._on_trial = next(suspects, None)
        if self._on_trial is not None:
            self._send(self._on_trial.submit_trial())
            return
        for each in self._in_flight.values():
            if not each.is_submitted:
                self._send(each.submit())

    def _failures(
        self, lost: Sequence[InFlightRequest], reason: str, *, was_alone: bool
    ) -> Iterator[RequestUpdate]:
        """The last updates of requests that were in too many lost steps."""
        for each in lost:
            is_alone = was_alone and each.num_lost_steps > 1
            if is_alone or each.num_lost_steps >= _MAX_LOST_STEPS:
                counted = f"{each.num_lost_steps} lost steps" + ", the last alone" * is_alone
                _log.error(
                    "request %s ends: it was in %s (%s)",
                    each.submission.request_id,
                    counted,
                    reason,
                )
                self._meter.note_suspect()
                # Alone it fails again; in the company of others, other requests may be to blame.
                kind = FailureKind.INTERNAL if is_alone else FailureKind.TEMPORARY
                yield each.fail(RequestFailure(kind, f"{reason}. The request was in {counted}"))
