"""The engine: requests in, updates out, one step at a time."""

import logging
import re
from collections import deque

from outrider.engine.decision import Expected
from outrider.engine.request import Request
from outrider.engine.scheduler import Scheduler
from outrider.errors import CapacityError, RequestError
from outrider.wire.request import Limits, RequestUpdate, Submission
from outrider.wire.result import RowResult, StepResult
from outrider.wire.worker import PendingResult, RunnerFacts, StepRunner

_log = logging.getLogger(__name__)

_LOST = "the device is lost to this process after a failed step; restart the process"
_TORN = "the engine was stopped in the middle of a step; load the model again"
_LONGEST_REASON = 200  # characters of an error's message; the log has all of it


class Engine:
    """Owns the live requests and the steps in flight.

    With depth 0 a step's result is read before the next is planned; with depth 1 the next step is
    submitted first. The code is the same: a result is read once more than `depth` are in flight.

    A step that fails ends the requests it ran, with the reason. All others are computed again: they
    get the tokens that they would have had.
    """

    def __init__(self, runner: StepRunner, facts: RunnerFacts) -> None:
        self._runner = runner
        self._facts = facts
        self._scheduler = Scheduler(facts)
        self._requests: dict[str, Request] = {}
        self._inflight: deque[tuple[list[Expected], PendingResult]] = deque()
        self._num_arrived = 0
        self._end = ""  # why the engine stopped for good
        self.num_drafter_failures = 0  # after the first one, decoding is plain
        self.num_failed_steps = 0

    @property
    def has_work(self) -> bool:
        return not self._end and bool(self._requests or self._inflight)

    @property
    def max_context(self) -> int:
        return self._facts.host.max_context

    @property
    def vocab_size(self) -> int:
        return self._facts.vocab_size

    def add(self, submission: Submission) -> None:
        """Queue a request, or refuse it with the reason."""
        self._check_alive()
        self.check(submission.prompt, submission.limits)
        if submission.request_id in self._requests:
            raise RequestError(f"request id {submission.request_id!r} is already in use")
        if self._scheduler.num_waiting >= self._facts.host.max_queued:
            raise CapacityError(
                f"{self._scheduler.num_waiting} requests are waiting already; try again later or "
                "raise LimitsConfig.queued"
            )
        self._num_arrived += 1
        request = Request(submission, arrival=self._num_arrived)
        self._requests[submission.request_id] = request
        self._scheduler.enqueue(request)

    def check(self, prompt: tuple[int, ...], limits: Limits) -> None:
        """Refuse what could never run, however long it waited."""
        if not prompt:
            raise RequestError("the prompt is empty; give at least one token")
        if len(prompt) >= self.max_context:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens and the context holds {self.max_context}, "
                "answer included; shorten the prompt or load the model with a larger context"
            )
        if not 0 <= min(prompt) <= max(prompt) < self.vocab_size:
            raise RequestError(f"prompt token ids must be between 0 and {self.vocab_size - 1}")
        self._check_room(prompt, limits)

    def abort(self, request_id: str) -> None:
        """Stop a request and free what it holds; no further update names it."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._scheduler.finish(request)

    def step(self) -> tuple[RequestUpdate, ...]:
        """Submit the next step if there is one; read the oldest result if it is due."""
        self._check_alive()
        batch, owners = self._scheduler.schedule()
        struck = owners  # of what fails next
        try:
            if not batch.is_empty:
                self._inflight.append((owners, self._runner.submit(batch)))
            is_due = len(self._inflight) > self._facts.depth or batch.is_empty
            if not (self._inflight and is_due):
                return ()
            # Later steps began where this one ends.
            struck = [each for later, _ in self._inflight for each in later]
            result = self._inflight[0][1].wait()
        except Exception as error:
            return self._start_over(struck, error)
        except BaseException:  # nobody knows how much of the step was done
            self._end = _TORN
            raise
        owners, _ = self._inflight.popleft()
        return self._absorb(owners, result)

    def _start_over(self, struck: list[Expected], error: Exception) -> tuple[RequestUpdate, ...]:
        """A step failed: end the requests it ran, and let the others begin again on a clean device.

        They are not tried again, so each failure leaves fewer requests.
        """
        _log.exception("a step failed")
        self.num_failed_steps += 1
        self._inflight.clear()
        failed, fix = self._live(struck), "try again"
        try:
            self._runner.restart()
        except Exception:
            _log.exception("%s", _LOST)
            self._end = _LOST
            failed, fix = list(self._requests.values()), _LOST
        self._scheduler.start_over(failed)
        _log.error("%d requests failed, %d are kept", len(failed), self._scheduler.num_waiting)
        return tuple(self._fail(request, f"{_reason(error)}; {fix}") for request in failed)

    def _live(self, struck: list[Expected]) -> list[Request]:
        """The requests behind these rows, without those that have ended since; each once."""
        requests = dict.fromkeys(expected.request for expected in struck)
        return [each for each in requests if self._requests.get(each.request_id) is each]

    def _fail(self, request: Request, reason: str) -> RequestUpdate:
        request.finish = "error"
        del self._requests[request.request_id]
        return RequestUpdate(
            request_id=request.request_id,
            tokens=(),
            logprobs=(),
            finish=request.finish,
            progress=request.progress,
            reason=reason,
        )

    def _check_alive(self) -> None:
        if self._end:
            raise CapacityError(self._end)

    def _absorb(self, owners: list[Expected], result: StepResult) -> tuple[RequestUpdate, ...]:
        updates = []
        if result.has_drafter_failed and not self.num_drafter_failures:
            self.num_drafter_failures += 1
            self._scheduler.stop_drafting()
        for expected, row in zip(owners, result.rows, strict=True):
            if expected.most and self._scheduler.is_running(expected.request, expected.placement):
                updates.append(self._take(expected, row))
        return tuple(updates)

    def _take(self, expected: Expected, row: RowResult) -> RequestUpdate:
        """Replace a bound by the truth, append the tokens, finish the request if they end it."""
        request, placement = expected.request, expected.placement
        placement.num_inflight -= 1
        placement.bound -= expected.most - len(row.tokens)
        taken = request.append(row.tokens, max_context=self.max_context)
        if expected.is_round:  # a draft past the end of the answer was not kept
            request.note_round(drafted=row.drafted, kept=min(len(row.tokens) - 1, taken))
        if request.finish != "running":
            self._scheduler.finish(request)
            del self._requests[request.request_id]
        return RequestUpdate(
            request_id=request.request_id,
            tokens=row.tokens[:taken],
            logprobs=row.logprobs[:taken],
            finish=request.finish,
            progress=request.progress,
        )

    def _check_room(self, prompt: tuple[int, ...], limits: Limits) -> None:
        host, capacity = self._facts.host, self._facts.num_pages * self._facts.host.page_size
        wanted = min(len(prompt) + limits.max_tokens, host.max_context)
        if wanted + 2 * self._facts.reach > capacity:
            raise RequestError(
                f"the request may grow to {wanted} tokens, but the KV cache holds {capacity}; "
                "lower max_tokens or raise the cache's kv_tokens"
            )


def _reason(error: Exception) -> str:
    """What went wrong, for the one who asked: a line without places of this machine."""
    lines = str(error).splitlines() or [""]
    message = re.sub(r"\S*[/\\]\S*", "...", lines[0])[:_LONGEST_REASON]
    return f"a step failed with {type(error).__name__}" + (f": {message}" if message else "")
