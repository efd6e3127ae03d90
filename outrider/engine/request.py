"""One request inside the engine: its tokens, its row and pages, its bounds."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from outrider.engine.draft_pace import DraftPace
from outrider.engine.prefix_cache.prefix_cache import Lease
from outrider.engine.unsent_states import UnsentStates
from outrider.wire.draft_budget import UNBOUNDED, Budget
from outrider.wire.failure import NO_FAILURE, FailureKind, RequestFailure
from outrider.wire.step_result import NO_DETAILS, RowDetails, TokenLogprobs
from outrider.wire.submission import FinishReason, Progress, RequestUpdate, Submission

Precedence = tuple[int, int]  # priority and arrival of a request; the smallest runs first


class Phase(Enum):
    """Where a request is. Preemption leads back from the running phases to WAITING."""

    WAITING = auto()
    PREFILLING = auto()
    DECODING = auto()
    FINISHED = auto()


class Placement:
    """What a running request holds on the device. A new placement begins with every admission.

    [0, cached)      served by the prefix cache at admission
    [0, bound)       at most this much is cached once every submitted step has run
    [0, goal)        known tokens at admission: the prompt, and tokens emitted before a preemption
    """

    __slots__ = (
        "bound",
        "cuts",
        "goal",
        "is_held",
        "lease",
        "num_in_flight",
        "request",
        "room",
        "row",
    )

    def __init__(
        self,
        request: "Request",
        *,
        row: int,
        lease: Lease,
        goal: int,
        room: int,
        cuts: tuple[int, ...] = (),
    ) -> None:
        self.request = request
        self.row = row
        self.lease = lease
        self.goal = goal
        self.room = room  # positions that the pages of the lease have
        self.cuts = cuts  # where chunks end, in order, so that the row state is saved there
        self.bound = lease.cached
        self.num_in_flight = 0  # decode rounds submitted and not yet read
        self.is_held = True  # False after finish or preemption: later results do not count

    @property
    def precedence(self) -> Precedence:
        return self.request.precedence

    @property
    def fewest_cached(self) -> int:
        """Of a decode row: tokens that are cached at least. A round emits one or more."""
        return len(self.request.tokens) - 1 + self.num_in_flight

    @property
    def num_until_stop(self) -> int:
        """The most tokens that its next chunk can have."""
        return next((cut for cut in self.cuts if cut > self.bound), self.goal) - self.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivedPrompt:
    """KV of a prompt that another engine computed, for one request."""

    lease: Lease  # locked, so that no other request takes the pages first
    row_state: str  # the transfer that brought some; empty if the model has none


class Request:
    """Owns the tokens of one submission and the counts reported about it."""

    def __init__(
        self,
        submission: Submission,
        *,
        emitted: tuple[int, ...],
        key: tuple[int, ...] = (),  # of the prompt in the prefix cache, if tokens are not enough
        budget: Budget,
        arrival: int,
        max_context: int,
        is_paced: bool,
    ) -> None:
        limits = submission.limits
        self.submission = submission
        self.is_offered = submission.transfer.kind == "offer"  # another engine decodes
        self.request_id = submission.request_id
        self.budget = budget  # the most it may draft here
        most_emitted = 0 if self.is_offered else limits.max_tokens
        self.longest = min(len(submission.prompt) + most_emitted, max_context)  # of `tokens`
        self._stop_ids = limits.stop_ids
        self._bounded = (UNBOUNDED, budget)  # a bound of the batch, and the budget within it
        self.precedence: Precedence = (submission.priority, arrival)  # no two are equal
        self.phase = Phase.WAITING
        self.arrived: ArrivedPrompt | None = None  # until it has its row
        self.tokens = [*submission.prompt, *emitted]  # prompt and output
        self._key = key
        self.finish: FinishReason = "running"
        self.failure = NO_FAILURE
        self.pace = DraftPace()
        self._is_paced = is_paced  # else it always uses its whole budget
        self._arrived_s = time.perf_counter()
        self.queued_s = 0.0
        self._is_new = True  # never admitted yet
        self._cached_at_first = 0
        self._rounds = 0
        self._drafted = 0
        self._accepted_per_depth: tuple[int, ...] = ()
        self._preemptions = 0
        self._scores: list[TokenLogprobs] = []  # of the prompt, not reported yet
        # The first emitted token came with the scores of the whole prompt.
        self._num_scored = len(submission.prompt) if emitted else 0
        # The last token does not run before the next one is wanted.
        num_ran = len(self.tokens) - 1 if emitted else 0
        self._states = UnsentStates(submission.sampling.hidden_states, num_sent=num_ran)

    @property
    def progress(self) -> Progress:
        return Progress(
            self._cached_at_first,
            self._rounds,
            self._drafted,
            self._accepted_per_depth,
            self._preemptions,
        )

    @property
    def goal(self) -> int:
        """Known tokens to compute. The engine that decodes computes the last one itself."""
        return max(len(self.tokens) - self.is_offered, 1)

    @property
    def num_arrived_pages(self) -> int:
        return len(self.arrived.lease.pages) if self.arrived is not None else 0

    def cache_key(self, num_tokens: int) -> Sequence[int]:
        """The first tokens as the prefix cache knows them: embeddings have ids by content."""
        if not self._key:
            return self.tokens[:num_tokens]
        return [*self._key[:num_tokens], *self.tokens[len(self._key) : num_tokens]]

    def budget_within(self, most: Budget) -> Budget:
        """The part of its budget to use now. Consecutive steps mostly have the same bound."""
        if self._bounded[0] is not most:
            self._bounded = (most, self.budget.within(most))
        return self.pace.within(self._bounded[1]) if self._is_paced else self._bounded[1]

    @property
    def is_not_finite(self) -> bool:
        """Whether it failed by numbers that its KV may hold."""
        return self.failure.kind is FailureKind.NOT_FINITE

    @property
    def most_cached(self) -> int:
        """Positions that the prefix cache may serve. The others must run for their logits."""
        # The last token chooses the next one.
        last = self._states.most_cached(self.goal - 1)
        wanted = self.submission.sampling.logprobs.prompt
        next_scored = wanted.first + self._num_scored
        is_scored = not wanted.is_wanted or next_scored >= len(self.submission.prompt)
        return last if is_scored else min(next_scored - 1, last)

    def update(self, tokens: tuple[int, ...], details: RowDetails) -> RequestUpdate:
        """The update after a step that emitted these tokens, perhaps the last ones."""
        update = RequestUpdate(
            self.request_id, tokens, (), self.finish, self.progress, self.queued_s
        )
        if details is NO_DETAILS and not self._scores:  # the usual case
            return update
        if details.hidden_states.first < 0:  # of a decode row, whose length is known now
            first = len(self.tokens) - len(tokens) - 1
            self._states.note(details.hidden_states.upto(len(tokens)).placed(first))
        return update._replace(
            logprobs=details.logprobs[: len(tokens)],
            rounds=tuple([each.cut(len(tokens)) for each in details.rounds]),
            prompt_logprobs=self._take_scores(),
            failure=self.failure,
            hidden_states=self._states.take(),
        )

    def note_prompt(self, details: RowDetails) -> None:
        """Store what a chunk reports. After a preemption it reports old values, too."""
        if details.hidden_states.first >= 0:
            self._states.note(details.hidden_states)
        scores = details.scores
        first = self.submission.sampling.logprobs.prompt.first
        last = len(self.submission.prompt)
        for position, logprobs in enumerate(scores.logprobs, start=scores.first):
            if position == first + self._num_scored and position < last:
                self._scores.append(logprobs)
                self._num_scored += 1

    def _take_scores(self) -> tuple[TokenLogprobs, ...]:
        """Scores that were not reported yet."""
        scores, self._scores = tuple(self._scores), []
        return scores

    def note_admission(self, cached: int) -> None:
        """Only the first cache hit is reported; later ones come from preemptions."""
        if self._is_new:
            self._is_new = False
            self._cached_at_first = cached
            self.queued_s = time.perf_counter() - self._arrived_s

    def note_preemption(self) -> None:
        self._preemptions += 1

    def note_round(self, drafted: int, *, num_accepted: int, most: int) -> None:
        """Count a finished round, which may have had so many drafts on a path, and its accepted
        ones.
        """
        self._rounds += 1
        self._drafted += drafted
        if self._is_paced:
            self.pace.note_round(drafted=drafted, num_accepted=num_accepted, most=most)
        if num_accepted:
            counts = list(self._accepted_per_depth)
            if num_accepted > len(counts):
                counts += [0] * (num_accepted - len(counts))
            for depth in range(num_accepted):
                counts[depth] += 1
            self._accepted_per_depth = tuple(counts)

    def append(self, tokens: tuple[int, ...], failure: RequestFailure = NO_FAILURE) -> int:
        """Take tokens until one ends the request; returns how many were taken.

        With a failure the request cannot go on after these tokens: it fails unless it ends before.
        """
        taken = self._take(tokens) if tokens or failure.is_none else 0
        if not failure.is_none and self.finish == "running":
            self.fail(failure)
        return taken

    def fail(self, failure: RequestFailure) -> None:
        self.finish, self.failure = "error", failure

    def _take(self, tokens: tuple[int, ...]) -> int:
        if len(self.tokens) + len(tokens) < self.longest and self._stop_ids.isdisjoint(tokens):
            self.tokens += tokens
            return len(tokens)
        if not self.submission.limits.max_tokens:  # the request only reads its prompt
            self.finish = "length"
            return 0
        for count, token in enumerate(tokens, start=1):
            self.tokens.append(token)
            if token in self._stop_ids:
                self.finish = "stop"
                return count
            if len(self.tokens) >= self.longest:
                self.finish = "length"
                return count
        return len(tokens)
