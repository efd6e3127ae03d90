"""The engine: requests in, updates out, one step at a time."""

from collections import deque

from outrider.engine.decision import Expected
from outrider.engine.request import Request
from outrider.engine.scheduler import Scheduler
from outrider.errors import CapacityError, RequestError
from outrider.wire.batch import ScheduledBatch
from outrider.wire.request import Limits, RequestUpdate, Submission
from outrider.wire.result import RowResult, StepResult
from outrider.wire.worker import PendingResult, RunnerFacts, StepRunner


class Engine:
    """Owns the live requests and the steps in flight.

    With depth 0 a step's result is read before the next is planned; with depth 1 the next step is
    submitted first. The code is the same: a result is read once more than `depth` are in flight.
    """

    def __init__(self, runner: StepRunner, facts: RunnerFacts) -> None:
        self._runner = runner
        self._facts = facts
        self._scheduler = Scheduler(facts)
        self._requests: dict[str, Request] = {}
        self._inflight: deque[tuple[list[Expected], PendingResult]] = deque()
        self._num_arrived = 0
        self._has_failed = False
        self.num_drafter_failures = 0  # after the first one, decoding is plain

    @property
    def has_work(self) -> bool:
        return not self._has_failed and bool(self._requests or self._inflight)

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
        batch, expected = self._scheduler.schedule()
        if not batch.is_empty:
            self._inflight.append((expected, self._submit(batch)))
        is_due = len(self._inflight) > self._facts.depth or batch.is_empty
        if not (self._inflight and is_due):
            return ()
        owners, pending = self._inflight.popleft()
        return self._absorb(owners, pending.wait())

    def _submit(self, batch: ScheduledBatch) -> PendingResult:
        """Start a step. If that fails, so has the engine: pages it promised to write were not."""
        try:
            return self._runner.submit(batch)
        except BaseException:
            self._has_failed = True
            raise

    def _check_alive(self) -> None:
        if self._has_failed:
            raise CapacityError("the engine stopped after a failure; load the model again")

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
