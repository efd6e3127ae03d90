"""Decides each step: which requests decode, prefill, are admitted or are preempted.

Decode rows go first and take one round each. The prompts in progress share what is left of the
step's token budget, so a long prompt delays the others by no more than its share. Pages are
reserved for the most a step can write. When they run out, the running request with the largest
precedence is preempted: it loses its pages, keeps its tokens, and is computed again later.
"""

from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import replace

from outrider.engine.adapter_slots import AdapterSlots
from outrider.engine.adaptive.make_policy import make_policy
from outrider.engine.draft_policy import DraftPolicy
from outrider.engine.finished_texts import FinishedTexts
from outrider.engine.pending_requests import PendingRequests
from outrider.engine.prefix_cache.prefix_cache import Lease, PrefixCache
from outrider.engine.prefix_cache.snapshot_slots import SnapshotSlots
from outrider.engine.prefix_cache.window_pages import open_windows
from outrider.engine.prompt_shares import pick_prompts, share_budget
from outrider.engine.request import Phase, Placement, Precedence, Request
from outrider.engine.row_borders import RowBorders
from outrider.engine.step_decision import ExpectedStep, StepDecision
from outrider.engine.waiting_queue import WaitingQueue
from outrider.errors import CapacityError, RequestError
from outrider.wire.draft_budget import PLAIN_RUNG, Rung
from outrider.wire.embedded_span import spans_within
from outrider.wire.engine_stats import (
    Capacity,
    DeviceWork,
    EngineStats,
    Faults,
    PrefixCounts,
    Queue,
    TransferCounts,
)
from outrider.wire.failure import FailureKind, failure_of
from outrider.wire.image_span import shift_before
from outrider.wire.runner_facts import RunnerFacts
from outrider.wire.scheduled_batch import ScheduledBatch, ScheduledChunk
from outrider.wire.step_result import RowDetails, StepResult


class Scheduler:
    """Owns the rows and the queue, and leases pages. True lengths are known only from results."""

    def __init__(self, facts: RunnerFacts, pending: PendingRequests) -> None:
        """A request that is not ready when it could get a row leaves the queue. `pending` has it
        from then on, until it is enqueued again or fails.
        """
        self._pending = pending
        self._facts = facts
        self._limits = facts.host
        self._reach = facts.reach
        self.cache = PrefixCache(
            num_pages=facts.num_pages + 1,  # page 0 is padding
            page_size=facts.host.page_size,
            enabled=facts.host.prefix_cache,
            lookahead=facts.draft.lookahead,
            slots=SnapshotSlots(facts.snapshots.num) if facts.snapshots.row_bytes else None,
            windows=open_windows(facts),
        )
        self.borders = RowBorders(self.cache, every=facts.snapshots.every)
        self._adapters = AdapterSlots(facts.host.max_loras, pending.read_adapter)
        self._waiting = WaitingQueue()
        self._running: dict[Request, Placement] = {}
        # The same placements by phase, in order of precedence: every step needs the decode rows.
        self._prefilling: list[Placement] = []
        self._decoding: list[Placement] = []
        self._free_rows = list(range(facts.host.max_rows, 0, -1))  # row 0 is padding
        self._step = 0
        self._policy = make_policy(facts.draft)
        self._finished = FinishedTexts(is_wanted=facts.draft.needs_finished)
        self.is_drafting = True
        self._is_stuck = False  # no waiting request was admitted in the last step

    @property
    def num_waiting(self) -> int:
        """Requests without a row, also those that wait for their KV or grammar."""
        return len(self._waiting) + len(self._pending)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def count_claimed(self, precedence: Precedence) -> int:
        """Pages that are needed before a request of this precedence gets some."""
        num_for, waiting = self.cache.pages_for, self._waiting.before(precedence)
        needed = (num_for(each.goal + self._reach) - each.num_arrived_pages for each in waiting)
        return len(self._running) + sum(needed)

    def stats(self, *, faults: Faults, work: DeviceWork, transfers: TransferCounts) -> EngineStats:
        """Rows, pages and requests in use; the engine adds the rest."""
        cache, stats = self.cache, self.cache.stats
        return EngineStats(
            queue=Queue(waiting=self.num_waiting, running=self.num_running),
            rows=Capacity(free=len(self._free_rows), total=self._limits.max_rows),
            pages=cache.capacity,
            prefix=PrefixCounts(queried_tokens=stats.queried_tokens, hit_tokens=stats.hit_tokens),
            faults=faults,
            work=work,
            transfers=transfers,
        )

    def enqueue(self, request: Request) -> None:
        self._waiting.push(request)

    def flush(self) -> None:
        """Forget what finished requests left: cached prefixes and their texts."""
        self.cache.flush()
        self._finished.forget()

    def finish(self, request: Request) -> None:
        """Release everything a request holds. Its KV stays in the prefix cache if it is finite."""
        if request.phase is Phase.WAITING:
            self._waiting.discard(request)
        else:
            self._release(request)
        self._finished.note(request)
        request.phase = Phase.FINISHED

    def hand_over(self, request: Request) -> Lease:
        """End a request that emits nothing here; the caller owns its pages from now on."""
        lease = self._leave_row(request).lease
        request.phase, request.finish = Phase.FINISHED, "length"
        return lease

    def end_bad_prompts(
        self, expected: ExpectedStep, details: Mapping[int, RowDetails]
    ) -> list[Request]:
        """Fail the requests whose prompt has numbers that are not finite before its end.

        The tokens after them see them. No other request may find them in the prefix cache.
        """
        ended = []
        for place, own in details.items():
            placement, lease = expected.placements[place], expected.placements[place].lease
            is_prompt = place >= expected.num_rounds
            if not (is_prompt and own.failure.kind is FailureKind.NOT_FINITE):
                continue
            if not placement.is_held:  # aborted or preempted meanwhile
                text = placement.request.cache_key(placement.bound)
                self.cache.forget(text, salt=lease.salt, num_first=lease.cached)
            elif not expected.most[place]:
                placement.request.fail(own.failure)
                self.finish(placement.request)
                ended.append(placement.request)
        return ended

    def start_over(self, failed: Iterable[Request], *, num_held: int = 0) -> None:
        """The device was reset: `failed` requests end here, running ones wait again.

        No cached page survives: a step that failed may never have written it. Transfers hold
        `num_held` pages, which are not cached.
        """
        for request in failed:
            self.finish(request)
        for request in list(self._running):
            self._put_back(request)
        self._adapters.forget()
        self.cache.flush()
        num_free = self.cache.num_available + num_held
        assert num_free == self.cache.num_pages, "no request holds a page any more"

    def schedule(self) -> tuple[ScheduledBatch, ExpectedStep]:
        """The next step, and what results its rows will have. It may be empty."""
        decision = StepDecision(needs_text=self._facts.draft.needs_text)
        self._step += 1
        self._schedule_decodes(decision)
        num_waiting = len(self._waiting)
        self._admit(decision)
        self._is_stuck = 0 < num_waiting == len(self._waiting)
        if self._prefilling:
            self._schedule_chunks(decision)
        self._policy.settle(self._step, decision.load)
        batch, expected = decision.freeze(self._step)
        if not batch.is_empty:  # an empty batch is not submitted
            batch = replace(batch, finished=self._finished.take())
        return batch, expected

    def note_result(self, result: StepResult, num_rounds: int) -> None:
        """Measure how far drafting pays; the first rows of a step are its verify rounds."""
        emitted = max(sum(map(len, result.tokens[:num_rounds])), 1)  # failed rows emit none
        emitted_per_row = emitted / num_rounds if num_rounds else 0.0
        self._policy.note(result.step, seconds=result.busy_s, emitted_per_row=emitted_per_row)

    def _schedule_decodes(self, decision: StepDecision) -> None:
        ranked = tuple(self._decoding)  # some may be preempted in this loop
        rung = self._most_drafted(len(ranked))
        decision.drafts_per_row = rung.drafts
        for placement in ranked:
            request = placement.request
            # Each round in flight emits at least one token, so the request may end with it.
            has_ended = len(request.tokens) + placement.num_in_flight >= request.longest
            if has_ended or not placement.is_held:
                continue
            is_short = placement.bound + self._reach > placement.room
            if is_short and not self._grow(
                placement, decision, oldest=placement.fewest_cached, bound=placement.bound
            ):
                continue
            budget = request.budget_within(rung.tree)
            most = budget.most_emitted
            decision.decode(placement, budget, most=most)
            if self.borders.is_needed:
                decision.save(placement, self.borders.save_round(placement, most))
            placement.bound += most
            placement.num_in_flight += 1

    def stop_drafting(self) -> None:
        """The drafter failed: schedule plain decoding from now on."""
        self.is_drafting = False

    def begin_drafting(self, policy: DraftPolicy | None = None) -> None:
        """There is a new drafter: what the one before cost and gained says nothing about it."""
        self.is_drafting, self._policy = True, policy or make_policy(self._facts.draft)

    def _most_drafted(self, num_rows: int) -> Rung:
        if not num_rows or not self.is_drafting:
            return PLAIN_RUNG
        ahead = self._num_prompt_ahead(num_rows)
        return self._policy.choose(self._step, num_rows=num_rows, num_prompt=ahead)

    def _num_prompt_ahead(self, num_rows: int) -> int:
        """Estimate of the prompt tokens in this step, before requests are admitted to it."""
        most = self._facts.max_chunks
        ahead = [each.goal - each.bound for each in self._prefilling[:most]]
        num = min(len(self._waiting), len(self._free_rows), most - len(ahead))
        if num and not self._is_stuck and (head := self._waiting.head()) is not None:
            ahead += [len(head.tokens)] * num
        return max(0, min(sum(ahead), self._chunk_budget(num_rows)))

    def _chunk_budget(self, num_rows: int) -> int:
        """Prompt tokens that fit into a step with so many decode rows."""
        return self._limits.max_step_tokens - num_rows * self._facts.draft.budget.nodes

    def _grow(
        self, placement: Placement, decision: StepDecision, *, oldest: int, bound: int
    ) -> bool:
        """Reserve the pages of queries from `oldest` on, and of a round that starts at `bound`.

        False if it cannot run in this step: it was preempted, or a chunk has what it needs.
        """
        lease, num_tokens = placement.lease, bound + self._reach
        while True:
            try:
                pages = self.cache.extend(lease, num_tokens)
                placement.room += len(pages) * self._limits.page_size
                decision.grant(placement, pages)
                window_pages = self.cache.slide(lease, oldest=oldest, num_tokens=num_tokens)
                decision.grant_window(placement, window_pages)
            except CapacityError:
                worst = self._last_in_rank()
                if self._pending.role.give_way(after=worst.precedence):
                    continue
                # What a chunk will write is published already.
                if decision.has_chunk(self._running[worst]):
                    return False
                self._preempt(worst, decision)
                if worst is placement.request:
                    return False
            else:
                return True

    def _admit(self, decision: StepDecision) -> None:
        """Admit waiting requests in order of precedence while there is room for the first.

        One whose adapter finds no slot lets requests without an adapter pass, and no others.
        """
        has_slot = True
        while (head := self._waiting.head(has_slot=has_slot)) is not None:
            if self._free_rows and not self._pending.grammars.is_ready(head):
                self._waiting.pop(head)
            elif not self._adapters.has_room(head.submission.adapter):
                has_slot = False
            elif self._free_rows and not self._has_adapter(head):
                self._waiting.pop(head)
            elif not (self._free_rows and self._place(head, decision)):
                worst = self._last_in_rank() if self._running else head
                if worst is head and self._pending.role.give_way(after=head.precedence):
                    continue
                if worst.submission.priority <= head.submission.priority:
                    break
                self._preempt(worst, decision)

    def _has_adapter(self, head: Request) -> bool:
        """Whether the adapter of a request can be loaded. If not, the request fails alone."""
        try:
            self._adapters.prepare(head.submission.adapter)
        except RequestError as error:
            self._pending.refuse(head, failure_of(error))
            return False
        return True

    def _place(self, head: Request, decision: StepDecision) -> bool:
        """Give the first waiting request a row and the pages of its prompt, or change nothing."""
        goal = head.goal
        lease, arrived = self._open(head)
        # Running rows need about a page each soon. Without this margin they preempt the newcomer.
        if not self.cache.has_room(lease, goal + self._reach, spare=len(self._running)):
            if head.arrived is None:
                self.cache.close(lease, ())
            return False
        self.cache.extend(lease, goal + self._reach)
        self._waiting.pop(head)
        head.phase, head.arrived = Phase.PREFILLING, None
        head.note_admission(lease.cached)
        row, room = self._free_rows.pop(), len(lease.pages) * self._limits.page_size
        cuts = self.borders.cuts(lease, goal)
        placement = Placement(head, row=row, lease=lease, goal=goal, room=room, cuts=cuts)
        self._running[head] = placement
        insort(self._prefilling, placement, key=_rank)
        slot, loads = self._adapters.take(head.submission.adapter)
        decision.adapter_loads += loads
        owner = self._finished.reader_of(head.submission)
        decision.admit(head, placement, arrived=arrived, owner=owner, adapter_slot=slot)
        decision.grant_window(placement, self.cache.windows.ids(lease.window, lease.pages))
        return True

    def _open(self, head: Request) -> tuple[Lease, str]:
        """Pages that hold the beginning of a prompt; and the name of its row state, if any came."""
        if head.arrived is not None:
            return head.arrived.lease, head.arrived.row_state
        salt = head.submission.prefix_salt
        return self.cache.open(head.cache_key(head.most_cached), salt=salt), ""

    def _schedule_chunks(self, decision: StepDecision) -> None:
        budget = self._chunk_budget(decision.num_decodes)
        prompts = {each.request: each.goal - each.bound for each in self._prefilling}
        picked = pick_prompts(prompts, self._facts.max_chunks)
        most = {request: self._running[request].num_until_stop for request in picked}
        for request, count in share_budget(most, budget).items():
            if request in self._running:  # it may be preempted in this loop
                self._schedule_chunk(request, count, decision)

    def _schedule_chunk(self, request: Request, count: int, decision: StepDecision) -> None:
        placement = self._running[request]
        start, stop = placement.bound, placement.bound + count
        if not self._grow(placement, decision, oldest=start, bound=stop):
            return
        is_last = stop == placement.goal
        chunk = ScheduledChunk(
            row=placement.row,
            start=start,
            tokens=tuple(request.tokens[start:stop]),
            follower=request.tokens[stop] if stop < len(request.tokens) else -1,
            embeds=spans_within(request.submission.embeds, start, stop),
            images=spans_within(request.submission.images, start, stop),
            shift=shift_before(request.submission.images, start),
        )
        decision.chunk(placement, chunk)
        placement.bound = stop
        decision.save(placement, self.borders.save_chunk(placement))
        # Steps run in order, so requests admitted later find these pages written.
        self.cache.publish(placement.lease, request.cache_key(stop))
        if is_last:
            request.phase = Phase.DECODING
            self._prefilling.remove(placement)
            insort(self._decoding, placement, key=_rank)
            placement.num_in_flight += 1

    def _last_in_rank(self) -> Request:
        return max(self._running, key=lambda request: request.precedence)

    def _preempt(self, request: Request, decision: StepDecision) -> None:
        """Take a request off the device. Its results in flight are dropped and computed again."""
        decision.remove(self._running[request])
        self._put_back(request)

    def _put_back(self, request: Request) -> None:
        """Move a request from its row to the queue; its tokens stay known."""
        self._release(request)
        request.note_preemption()
        request.phase = Phase.WAITING
        self._waiting.push(request)

    def _leave_row(self, request: Request) -> Placement:
        placement = self._running.pop(request)
        placement.is_held = False
        (self._decoding if request.phase is Phase.DECODING else self._prefilling).remove(placement)
        self._free_rows.append(placement.row)
        self._adapters.release(request.submission.adapter)
        return placement

    def _release(self, request: Request) -> None:
        placement = self._leave_row(request)
        if request.is_not_finite:
            self.cache.discard(placement.lease)
        else:
            # The last known token is not cached yet; of a prompt, only the submitted part is.
            num_cached = min(placement.bound, len(request.tokens) - 1)
            self.cache.close(placement.lease, request.cache_key(num_cached))


def _rank(placement: Placement) -> tuple[int, int]:
    return placement.precedence
