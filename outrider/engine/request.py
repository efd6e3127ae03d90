"""One request while the engine holds it: its tokens, its place on the device, its bounds."""

import time
from enum import Enum, auto

from outrider.cache.prefix import Lease
from outrider.engine.pace import Pace
from outrider.wire.request import FinishReason, Progress, Submission
from outrider.wire.result import PromptScores, TokenLogprobs
from outrider.wire.speculation import UNBOUNDED, Budget


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
    [0, goal)        known tokens at admission: the prompt, and what was emitted before a preemption
    """

    __slots__ = ("bound", "goal", "is_held", "lease", "num_inflight", "request", "room", "row")

    def __init__(self, request: "Request", *, row: int, lease: Lease, goal: int, room: int) -> None:
        self.request = request
        self.row = row
        self.lease = lease
        self.goal = goal
        self.room = room  # positions that the pages of the lease have
        self.bound = lease.cached
        self.num_inflight = 0  # decode rounds submitted and not yet read
        self.is_held = True  # until it finishes or gives way: results are void from then on

    @property
    def rank(self) -> tuple[int, int]:
        return self.request.rank

    @property
    def has_surely_ended(self) -> bool:
        """Each result in flight brings at least one token, which may be all that was missing."""
        return len(self.request.tokens) + self.num_inflight >= self.request.longest

    def settle(self, *, most: int, emitted: int) -> None:
        """A result in flight could have brought `most` tokens and has brought so many."""
        self.num_inflight -= 1
        self.bound -= most - emitted


class Request:
    """Owns the tokens of one submission and the counts reported about it."""

    def __init__(
        self, submission: Submission, *, budget: Budget, arrival: int, max_context: int
    ) -> None:
        limits = submission.limits
        self.submission = submission
        self.budget = budget  # the most it may draft here
        self.longest = min(len(submission.prompt) + limits.max_tokens, max_context)  # of `tokens`
        self._stop_ids = limits.stop_ids
        self._bounded = (UNBOUNDED, budget)  # a bound of the batch, and what it leaves
        self.rank = (submission.priority, arrival)  # smaller goes first; never two alike
        self.phase = Phase.WAITING
        self.tokens = list(submission.prompt)  # prompt and output
        self.finish: FinishReason = "running"
        self.pace = Pace()
        self._arrived_s = time.perf_counter()
        self._queued_s = 0.0
        self._cached_at_first = -1
        self._rounds = 0
        self._drafted = 0
        self._kept_per_depth: tuple[int, ...] = ()
        self._preemptions = 0
        self._scores: list[TokenLogprobs] = []  # of the prompt, not told yet
        self._num_scored = 0

    @property
    def request_id(self) -> str:
        return self.submission.request_id

    @property
    def progress(self) -> Progress:
        return Progress(
            max(self._cached_at_first, 0),
            self._rounds,
            self._drafted,
            self._kept_per_depth,
            self._preemptions,
            self._queued_s,
        )

    def budget_within(self, most: Budget) -> Budget:
        """The part of its budget that a bound leaves; steps in a row mostly have the same one."""
        if self._bounded[0] is not most:
            self._bounded = (most, self.budget.within(most))
        return self._bounded[1]

    @property
    def most_cached(self) -> int:
        """Positions that may be served by the cache: the others must run, for their logits."""
        last = len(self.tokens) - 1  # it chooses the next token
        asked = self.submission.sampling.logprobs.prompt
        next_scored = asked.first + self._num_scored
        is_scored = not asked.is_asked or next_scored >= len(self.submission.prompt)
        return last if is_scored else min(next_scored - 1, last)

    def note_scores(self, scores: PromptScores) -> None:
        """Take what is new; after a preemption a prompt may be computed, and scored, again."""
        if not scores.logprobs:
            return
        first = self.submission.sampling.logprobs.prompt.first
        last = len(self.submission.prompt)
        for position, logprobs in enumerate(scores.logprobs, start=scores.first):
            if position == first + self._num_scored and position < last:
                self._scores.append(logprobs)
                self._num_scored += 1

    def take_scores(self) -> tuple[TokenLogprobs, ...]:
        """What has not been told yet."""
        if not self._scores:
            return ()
        scores, self._scores = tuple(self._scores), []
        return scores

    def note_admission(self, cached: int) -> None:
        """The first admission's cache hit is what the user hears; later ones are our own doing."""
        if self._cached_at_first < 0:
            self._cached_at_first = cached
            self._queued_s = time.perf_counter() - self._arrived_s

    def note_preemption(self) -> None:
        self._preemptions += 1

    def note_round(self, *, drafted: int, kept: int) -> None:
        self._rounds += 1
        self._drafted += drafted
        self.pace.note_round(drafted=drafted, kept=kept)
        if kept:
            counts = [*self._kept_per_depth, *[0] * (kept - len(self._kept_per_depth))]
            for depth in range(kept):
                counts[depth] += 1
            self._kept_per_depth = tuple(counts)

    def append(self, tokens: tuple[int, ...]) -> int:
        """Take tokens until one ends the request; returns how many were taken."""
        if len(self.tokens) + len(tokens) < self.longest and self._stop_ids.isdisjoint(tokens):
            self.tokens += tokens
            return len(tokens)
        if not self.submission.limits.max_tokens:  # only the prompt was wanted
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
