"""The engine: requests in, updates out, one step at a time."""

import logging
import re
from collections import deque
from collections.abc import Sequence

from outrider.engine.admission import check_request
from outrider.engine.pending_grammars import PendingGrammars
from outrider.engine.request import Request
from outrider.engine.scheduler import Scheduler
from outrider.engine.step_decision import ExpectedStep
from outrider.errors import CapacityError, RequestError
from outrider.structured.grammar_cache import NO_GRAMMARS, Grammars
from outrider.wire.engine_stats import DeviceWork, EngineStats, Faults
from outrider.wire.grammar_spec import GrammarSpec
from outrider.wire.runner_facts import PendingResult, RunnerFacts, StepRunner
from outrider.wire.step_result import NO_DETAILS, StepResult
from outrider.wire.submission import Limits, RequestUpdate, Submission

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

    def __init__(
        self, runner: StepRunner, facts: RunnerFacts, grammars: Grammars = NO_GRAMMARS
    ) -> None:
        self._runner = runner
        self._facts = facts
        self._grammars = grammars
        self._pending_grammars = PendingGrammars(grammars)
        self._scheduler = Scheduler(facts, self._pending_grammars.is_ready)
        self._requests: dict[str, Request] = {}
        self._inflight: deque[tuple[ExpectedStep, PendingResult]] = deque()
        self._unburied: Sequence[object] = ()  # freeing what a lost device holds ends the process
        self._num_arrived = 0
        self._busy_s = 0.0
        self._end = ""  # why the engine stopped for good
        # Who was lost with the device though no failed step ran them: another process may.
        self.unharmed: frozenset[str] = frozenset()
        self.num_drafter_failures = 0  # after the first one, decoding is plain
        self.num_failed_steps = 0

    @property
    def has_work(self) -> bool:
        return not self._end and bool(self._requests or self._inflight)

    @property
    def is_over(self) -> bool:
        """Whether it stopped for good; only a new process helps."""
        return bool(self._end)

    @property
    def stats(self) -> EngineStats:
        faults = Faults(
            failed_steps=self.num_failed_steps, drafter_failures=self.num_drafter_failures
        )
        work = DeviceWork(busy_s=self._busy_s, counts=self._runner.counts)
        return self._scheduler.stats(faults=faults, work=work)

    @property
    def facts(self) -> RunnerFacts:
        return self._facts

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
        num_waiting = self._scheduler.num_waiting + len(self._pending_grammars)
        if num_waiting >= self._facts.host.max_queued:
            raise CapacityError(f"{num_waiting} requests are waiting already; try again later")
        self._num_arrived += 1
        draft = self._facts.draft
        request = Request(
            submission,
            budget=submission.budget.within(draft.budget),
            arrival=self._num_arrived,
            max_context=self.max_context,
            is_paced=draft.is_paced,
        )
        if submission.sampling.grammar.is_asked:
            self._pending_grammars.add(request)
        else:
            self._scheduler.enqueue(request)
        self._requests[submission.request_id] = request

    def check(self, prompt: tuple[int, ...], limits: Limits) -> None:
        """Refuse what could never run, however long it waited."""
        check_request(prompt, limits, self._facts)

    def check_grammar(self, spec: GrammarSpec) -> None:
        """Refuse a grammar that cannot be obeyed; a new one is compiled meanwhile."""
        self._grammars.check(spec)

    def abort(self, request_id: str) -> None:
        """Stop a request and free what it holds; no further update names it."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        if request in self._pending_grammars:
            self._pending_grammars.discard(request)
        else:
            self._scheduler.finish(request)

    def flush(self) -> None:
        """Forget every cached prefix that nobody uses."""
        self._scheduler.cache.flush()

    def step(self) -> tuple[RequestUpdate, ...]:
        """Submit the next step if there is one; read the oldest result if it is due."""
        self._check_alive()
        refused = self._enqueue_compiled()
        if refused:
            return refused
        batch, expected = self._scheduler.schedule()
        struck = [expected]  # by what fails next
        try:
            if not batch.is_empty:
                self._inflight.append((expected, self._runner.submit(batch)))
            is_due = len(self._inflight) > self._facts.depth or batch.is_empty
            if not (self._inflight and is_due):
                return ()
            # Later steps began where this one ends.
            struck = [each for each, _ in self._inflight]
            result = self._inflight[0][1].wait()
        except Exception as error:
            return self._start_over(struck, error)
        except BaseException:  # nobody knows how much of the step was done
            self._end = _TORN
            raise
        expected, _ = self._inflight.popleft()
        self._scheduler.note_result(result, expected.num_rounds)
        return self._absorb(expected, result)

    def _start_over(
        self, struck: list[ExpectedStep], error: Exception
    ) -> tuple[RequestUpdate, ...]:
        """A step failed: end the requests it ran, and let the others begin again on a clean device.

        They are not tried again, so each failure leaves fewer requests.
        """
        _log.exception("a step failed")
        self.num_failed_steps += 1
        dropped = list(self._inflight)
        self._inflight.clear()
        failed, fix = self._live(struck), "try again"
        try:
            self._runner.restart()
        except Exception:
            _log.exception("%s", _LOST)
            self._end = _LOST
            self._unburied = dropped
            self.unharmed = frozenset(self._requests).difference(each.request_id for each in failed)
            failed, fix = list(self._requests.values()), _LOST
        self._scheduler.start_over([each for each in failed if each not in self._pending_grammars])
        _log.error("%d requests failed, %d are kept", len(failed), self._scheduler.num_waiting)
        return tuple(self._fail(request, f"{_reason(error)}; {fix}") for request in failed)

    def _enqueue_compiled(self) -> tuple[RequestUpdate, ...]:
        """Queue whose grammar is ready now; what cannot be compiled is refused here at last."""
        if len(self._pending_grammars) == len(self._requests) and not self._inflight:
            self._pending_grammars.wait_briefly()  # there is nothing else to do
        refused = []
        for request, reason in self._pending_grammars.take_done():
            if reason:
                refused.append(self._fail(request, reason))
            else:
                self._scheduler.enqueue(request)
        return tuple(refused)

    def _live(self, struck: list[ExpectedStep]) -> list[Request]:
        """The requests behind these steps, without those that have ended since; each once."""
        requests = dict.fromkeys(owner.request for step in struck for owner in step.owners)
        return [each for each in requests if self._requests.get(each.request_id) is each]

    def _fail(self, request: Request, reason: str) -> RequestUpdate:
        request.finish = "error"
        del self._requests[request.request_id]
        self._pending_grammars.discard(request)
        return RequestUpdate(
            request_id=request.request_id,
            tokens=(),
            logprobs=(),
            finish=request.finish,
            progress=request.progress,
            queued_s=request.queued_s,
            reason=reason,
        )

    def _check_alive(self) -> None:
        if self._end:
            raise CapacityError(self._end)

    def _absorb(self, expected: ExpectedStep, result: StepResult) -> tuple[RequestUpdate, ...]:
        """Replace bounds by the truth, append the tokens, finish the requests that they end."""
        self._busy_s += result.busy_s
        if result.has_drafter_failed and not self.num_drafter_failures:
            self.num_drafter_failures += 1
            self._scheduler.stop_drafting()
        updates = self._absorb_details(expected, result)
        num_rounds, details = expected.num_rounds, result.details
        columns = zip(expected.owners, expected.most, result.tokens, result.drafted, strict=True)
        for place, (owner, most, tokens, drafted) in enumerate(columns):
            if not (most and owner.is_held):
                continue
            request = owner.request
            owner.num_inflight -= 1
            owner.bound -= most - len(tokens)
            taken = request.append(tokens)
            if place < num_rounds:  # the bonus is no draft; nor is what follows the end
                request.note_round(drafted, num_accepted=taken - (taken == len(tokens)))
            if request.finish != "running":
                self._scheduler.finish(request)
                del self._requests[request.request_id]
            updates.append(request.tell(tokens[:taken], details.get(place, NO_DETAILS)))
        return tuple(updates)

    def _absorb_details(self, expected: ExpectedStep, result: StepResult) -> list[RequestUpdate]:
        """Note what few rows have to tell; returns the news of those that cannot go on."""
        failed = []
        for place, details in result.details.items():
            owner = expected.owners[place]
            if owner.is_held:
                owner.request.note_scores(details.scores)
                if details.error and expected.most[place]:
                    self._scheduler.finish(owner.request)
                    failed.append(self._fail(owner.request, details.error))
        return failed


def _reason(error: Exception) -> str:
    """What went wrong, for the one who asked: a line without places of this machine."""
    lines = str(error).splitlines() or [""]
    message = re.sub(r"\S*[/\\]\S*", "...", lines[0])[:_LONGEST_REASON]
    return f"a step failed with {type(error).__name__}" + (f": {message}" if message else "")
