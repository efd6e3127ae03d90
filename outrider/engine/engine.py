"""The engine: requests in, updates out, one step at a time."""

import logging
from collections import deque
from collections.abc import Callable, Sequence

from outrider.engine.active_clock import ActiveClock
from outrider.engine.admission import check_request
from outrider.engine.draft_policy import DraftPolicy
from outrider.engine.engine_role import EngineRole
from outrider.engine.failure_reason import LOST, STOPPED_MID_STEP, failure_reason
from outrider.engine.new_requests import NewRequests
from outrider.engine.pending_requests import PendingRequests
from outrider.engine.prefix_cache.prefix_cache import PrefixCache
from outrider.engine.request import Placement, Request
from outrider.engine.runner_home import HomeRunner, NoHome, RunnerHome, SleepingRunner
from outrider.engine.scheduler import Scheduler
from outrider.engine.step_decision import ExpectedStep, running_requests
from outrider.engine.step_watch import OnSteps, StepWatch
from outrider.errors import CapacityError, RequestError
from outrider.structured.grammar_cache import NO_GRAMMARS, Grammars
from outrider.wire.adapter import NO_ADAPTER_CHECKS, Adapter, AdapterChecks
from outrider.wire.embedded_span import EmbeddedSpan
from outrider.wire.engine_stats import NO_STEPS, EngineStats, Faults, StepCounts
from outrider.wire.failure import FailureKind, RequestFailure
from outrider.wire.grammar_spec import GrammarSpec
from outrider.wire.runner_facts import PendingResult, RunnerFacts, StepRunner
from outrider.wire.scheduled_batch import ScheduledBatch
from outrider.wire.sleep_level import ALL_TAGS, ASLEEP, SleepLevel, SleepTag
from outrider.wire.step_result import NO_DETAILS, StepResult
from outrider.wire.submission import Limits, RequestUpdate, Submission

_log = logging.getLogger(__name__)


class Engine:
    """Owns the live requests and the steps in flight.

    With depth 0 the result of a step is read before the next step is planned; with depth 1 the next
    step is submitted first. The code is the same: a result is read when more than `depth` steps are
    in flight.

    When a step fails, the requests it ran end with the reason. All other requests are computed
    again and get the same tokens as without the failure.
    """

    def __init__(
        self,
        runner: StepRunner,
        facts: RunnerFacts,
        grammars: Grammars = NO_GRAMMARS,
        home: RunnerHome | None = None,
        adapters: AdapterChecks = NO_ADAPTER_CHECKS,
    ) -> None:
        self._runner = runner
        self._home = home or NoHome()
        self._facts = facts
        self._grammars = grammars
        self._pending = PendingRequests(grammars, adapters)
        self._scheduler = Scheduler(facts, self._pending)
        self._asleep: frozenset[SleepTag] = frozenset()  # what has to wake up; empty if awake
        self._earlier_counts = NO_STEPS  # of the runners before the last sleep
        self._requests: dict[str, Request] = {}
        self._in_flight: deque[tuple[ExpectedStep, PendingResult]] = deque()
        # Results on a lost device. They are never freed: freeing them would end the process.
        self._lost_results: Sequence[object] = ()
        self._watch = StepWatch()
        self._new_requests = NewRequests(facts)
        self._active = ActiveClock()
        self._end_reason = ""  # why the engine stopped for good; empty while it runs
        self.num_drafter_failures = 0  # of this drafter and of those before `wake_up`
        self.num_failed_steps = 0

    @property
    def has_work(self) -> bool:
        return not self._end_reason and bool(self._requests or self._in_flight)

    @property
    def is_over(self) -> bool:
        """Whether the engine stopped for good; only a new process helps."""
        return bool(self._end_reason)

    @property
    def stats(self) -> EngineStats:
        faults = Faults(
            failed_steps=self.num_failed_steps, drafter_failures=self.num_drafter_failures
        )
        work = self._active.read(self._counts, has_work=self.has_work)
        return self._scheduler.stats(faults=faults, work=work, transfers=self._pending.role.counts)

    @property
    def facts(self) -> RunnerFacts:
        return self._facts

    @property
    def asleep(self) -> frozenset[SleepTag]:
        """What has to be woken up before requests can run; empty if the engine is awake."""
        return self._asleep

    @property
    def max_context(self) -> int:
        return self._facts.host.max_context

    @property
    def vocab_size(self) -> int:
        return self._facts.vocab_size

    def watch_steps(self, on_steps: OnSteps) -> None:
        """Call `on_steps` before a step is submitted, if the steps in flight run other requests."""
        self._watch.on_steps = on_steps

    def use_role(self, make: Callable[[PrefixCache], EngineRole]) -> None:
        """Share the work of requests with other engines from now on."""
        self._pending.role = make(self._scheduler.cache)

    def use_policy(self, policy: DraftPolicy) -> None:
        """Bound drafts by this policy from now on."""
        self._scheduler.begin_drafting(policy)

    def tend(self) -> None:
        """Take back the pages of transfers that have ended."""
        self._pending.role.tend()

    def add(self, submission: Submission, emitted: tuple[int, ...] = ()) -> None:
        """Queue a request, or refuse it with the reason.

        `emitted` are tokens of its answer that another engine has emitted: it goes on after them.
        """
        self._check_awake()
        self.check(submission.prompt, submission.limits, submission.embeds)
        self.check_adapter(submission.adapter)
        if submission.request_id in self._requests:
            raise RequestError(f"request id {submission.request_id!r} is already in use")
        num_waiting = self._scheduler.num_waiting
        if num_waiting >= self._facts.host.max_queued:
            raise CapacityError(f"{num_waiting} requests are waiting already; try again later")
        request = self._new_requests.make(submission, emitted, self._runner)
        if not self._pending.add(request):
            self._scheduler.enqueue(request)
        self._requests[submission.request_id] = request
        self._active.note(has_work=True)

    def check(
        self, prompt: tuple[int, ...], limits: Limits, embeds: Sequence[EmbeddedSpan] = ()
    ) -> None:
        """Refuse a request that could never run, however long it waited."""
        check_request(prompt, limits, self._facts, embeds)

    def check_adapter(self, adapter: Adapter) -> None:
        """Refuse an adapter that the target cannot run through."""
        if adapter.is_wanted:
            self._check_awake()
            self._pending.adapters.check(adapter)

    def check_grammar(self, spec: GrammarSpec) -> None:
        """Refuse a grammar that cannot be compiled; a new one starts to compile."""
        self._check_awake()
        self._grammars.check(spec)

    def abort(self, request_id: str) -> None:
        """Stop a request and free what it holds; no update of it follows."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        if request not in self._pending:
            self._scheduler.finish(request)
        self._pending.discard(request)
        self._active.note(has_work=self.has_work)

    def abort_all(self) -> None:
        """Stop every request."""
        for request_id in tuple(self._requests):
            self.abort(request_id)

    def flush(self) -> None:
        """Forget every cached prefix that no request uses, and the texts of finished requests."""
        self._scheduler.flush()

    def sleep(self, level: SleepLevel) -> None:
        """End every request and run no other; give memory back as the level says.

        An engine that sleeps already can sleep deeper. What it has given back stays so.
        """
        self._check_alive()
        self.abort_all()
        while self._in_flight:  # the steps of requests that have just ended
            self.step()
        self._check_alive()  # one of the steps may have lost the device
        if level:
            self._home.offload(level)
            self._drop_runner()
        self._asleep |= {"scheduling"}

    def wake_up(self, tags: Sequence[SleepTag] = ALL_TAGS) -> None:
        """Bring back what the tags name. Requests can run once all is back.

        Raises if there is no memory for it. Then the engine sleeps on, and can be woken later.
        """
        self._check_alive()
        if "weights" in self._asleep.intersection(tags):
            self._home.restore_weights()
            self._asleep -= {"weights"}
        left = self._asleep.difference(tags)
        if left & {"weights", "kv_cache"}:
            self._asleep = left
            return
        if isinstance(self._runner, SleepingRunner):
            self._asleep |= {"kv_cache"}  # an earlier call may have taken it out already
            self._use(self._home.build_again())
            self._scheduler.begin_drafting()
        self._asleep = frozenset()

    def use_head(self, folder: str) -> None:
        """End every request, then draft with another head; refuses one that cannot be loaded."""
        self._check_awake()
        self.sleep(0)
        try:
            self._home.use_head(folder)
            self._drop_runner()  # what the old head computed is nowhere any more
        finally:
            self.wake_up()

    def _drop_runner(self) -> None:
        """Give back the runner and its KV, until `wake_up` builds another."""
        self._earlier_counts = self._counts
        self._use(SleepingRunner())
        self._scheduler.start_over(())
        self._home.release_memory()
        self._asleep |= {"weights", "kv_cache"}

    def _use(self, runner: HomeRunner) -> None:
        """Replace the runner. No request and no step is in flight."""
        self._runner, self._grammars = runner, runner.grammars
        self._pending.adapters = runner.adapters
        self._pending.grammars.use(runner.grammars)

    @property
    def _counts(self) -> StepCounts:
        return self._earlier_counts.plus(self._runner.counts)

    def step(self) -> tuple[RequestUpdate, ...]:
        """Submit the next step if there is one; read the oldest result if it is due."""
        refused = self.refuse()
        if refused:
            return refused
        batch, expected = self.schedule()
        failing = [expected]  # the steps that a failure from here on ends
        try:
            if not batch.is_empty:
                self.track(expected, self._runner.submit(batch))
            is_due = len(self._in_flight) > self._facts.depth or batch.is_empty
            if not (self._in_flight and is_due):
                return ()
            # Steps submitted later start from the state that this one leaves.
            failing = [each for each, _ in self._in_flight]
            result = self._in_flight[0][1].wait()
        except Exception as error:
            return self._start_over(failing, error)
        except BaseException:  # how much of the step was done is unknown
            self._end_reason = STOPPED_MID_STEP
            raise
        return self.absorb(result)

    # The parts of a step, for a group of engines whose steps run together.

    def refuse(self) -> tuple[RequestUpdate, ...]:
        """Queue requests that wait for nothing else; returns those that were refused meanwhile."""
        self._check_alive()
        self.tend()
        return self._enqueue_ready()

    def schedule(self) -> tuple[ScheduledBatch, ExpectedStep]:
        """Decide the next step. It may be empty."""
        batch, expected = self._scheduler.schedule()
        self._watch.note((each for each, _ in self._in_flight), expected)
        return batch, expected

    def track(self, expected: ExpectedStep, pending: PendingResult) -> None:
        """A step was submitted."""
        self._in_flight.append((expected, pending))

    def absorb(self, result: StepResult) -> tuple[RequestUpdate, ...]:
        """Take in the result of the oldest step in flight."""
        expected, _ = self._in_flight.popleft()
        self._scheduler.note_result(result, expected.num_rounds)
        return self._absorb(expected, result)

    @property
    def in_flight(self) -> Sequence[tuple[ExpectedStep, PendingResult]]:
        """The submitted steps whose results were not read yet, oldest first."""
        return self._in_flight

    def end(self, reason: str) -> None:
        """Stop for good: what computes for this engine is lost."""
        self._end_reason = reason
        self._in_flight.clear()

    @property
    def caches(self) -> tuple[PrefixCache, ...]:
        """The prefix cache of each rank: there is one rank here."""
        return (self._scheduler.cache,)

    def _start_over(
        self, failing: list[ExpectedStep], error: Exception
    ) -> tuple[RequestUpdate, ...]:
        """A step failed: end the requests it ran, and start the others again on a clean device.

        The requests of the failed step are not run again, so every failure leaves fewer requests.
        """
        _log.exception("a step failed")
        self.num_failed_steps += 1
        dropped = list(self._in_flight)
        self._in_flight.clear()
        failed, fix = running_requests(failing, self._requests), "try again"
        try:
            self._runner.restart()
        except Exception:
            _log.exception("%s", LOST)
            self._end_reason = LOST
            self._lost_results = dropped
            failed, fix = list(self._requests.values()), LOST
        self._pending.role.drop()
        placed = [each for each in failed if each not in self._pending]
        self._scheduler.start_over(placed, num_held=self._pending.role.counts.pages)
        _log.error("%d requests failed, %d run again", len(failed), self._scheduler.num_waiting)
        failure = RequestFailure(FailureKind.TEMPORARY, f"{failure_reason(error)}; {fix}")
        return tuple(self._fail(request, failure) for request in failed)

    def _enqueue_ready(self) -> tuple[RequestUpdate, ...]:
        """Queue requests that wait for nothing else now; fail those that were refused."""
        if len(self._pending) == len(self._requests) and not self._in_flight:
            self._pending.wait_briefly()  # there is nothing else to do
        refused = []
        for request, failure in self._pending.take_done(self._scheduler.count_claimed):
            if failure.is_none:
                self._scheduler.enqueue(request)
            else:
                refused.append(self._fail(request, failure))
        return tuple(refused)

    def _fail(self, request: Request, failure: RequestFailure) -> RequestUpdate:
        request.fail(failure)
        self._forget(request)
        self._active.note(has_work=self.has_work)
        return request.update((), NO_DETAILS)._replace(failure=failure)

    def _forget(self, request: Request) -> None:
        del self._requests[request.request_id]
        self._pending.discard(request)

    def _offer(self, placement: Placement) -> RequestUpdate:
        """A prompt is computed, for another engine to decode: the request ends here."""
        request = placement.request
        self._pending.role.offer(placement, self._scheduler.hand_over(request))
        self._forget(request)
        return request.update((), NO_DETAILS)

    def _check_alive(self) -> None:
        if self._end_reason:
            raise CapacityError(self._end_reason)

    def _check_awake(self) -> None:
        self._check_alive()
        if self._asleep:
            raise CapacityError(ASLEEP)

    def _absorb(self, expected: ExpectedStep, result: StepResult) -> tuple[RequestUpdate, ...]:
        """Replace bounds by true lengths, append the tokens, finish the requests they end."""
        self._active.busy_s += result.busy_s
        if result.has_drafter_failed and self._scheduler.is_drafting:
            self.num_drafter_failures += 1
            self._scheduler.stop_drafting()
        num_rounds, details, saved = expected.num_rounds, result.details, expected.saved_rounds
        bad = self._scheduler.end_bad_prompts(expected, details)
        updates = [self._fail(request, request.failure) for request in bad]
        updates += [self._offer(placement) for placement in expected.offered if placement.is_held]
        for place, own in details.items():
            if expected.placements[place].is_held:
                expected.placements[place].request.note_prompt(own)
        columns = zip(
            expected.placements, expected.most, result.tokens, result.drafted, strict=True
        )
        for place, (placement, most, tokens, drafted) in enumerate(columns):
            if not (most and placement.is_held):
                continue
            request, own = placement.request, details.get(place, NO_DETAILS)
            placement.num_in_flight -= 1
            placement.bound -= most - len(tokens)
            taken = request.append(tokens, own.failure)
            if place < num_rounds:  # the bonus token is no draft; nor are tokens after the end
                has_bonus = taken == len(tokens) and own.failure.is_none
                request.note_round(drafted, num_accepted=taken - has_bonus, most=most - 1)
                if place in saved:
                    self._scheduler.borders.settle_round(placement, saved[place], taken)
            if request.finish != "running":
                self._scheduler.finish(request)
                self._forget(request)
            updates.append(request.update(tokens[:taken], own))
        self._active.note(has_work=self.has_work)
        return tuple(updates)
