"""One request that the server accepted and that has not ended. It may outlive several workers."""

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from outrider.server.worker_messages import Submit
from outrider.wire.failure import RequestFailure
from outrider.wire.submission import NOTHING_YET, Progress, RequestUpdate, Submission

# A request on trial emits so many tokens alone: a prompt step and at least one decode step, which
# compute again what the lost step computed.
_TRIAL_TOKENS = 8


class InFlightRequest:
    """Owns what is known of one request. A new worker goes on after the last emitted token."""

    def __init__(self, submission: Submission) -> None:
        self.submission = submission
        self.emitted: list[int] = []
        self.progress = NOTHING_YET
        self.queued_s = 0.0
        self.last_update_s = time.perf_counter()
        self.is_submitted = False  # to the current worker
        self.is_suspect = False  # a worker may have died of it, and it has not run alone since
        self.num_lost_steps = 0
        self._earlier = NOTHING_YET  # progress under earlier submissions
        self._latest = NOTHING_YET  # progress under the last one

    def submit(self) -> Submit:
        """The message for a worker to run the request to its end."""
        self.is_submitted = True
        self._earlier, self._latest = self.progress, NOTHING_YET
        return Submit(self.submission, tuple(self.emitted))

    def submit_trial(self) -> Submit:
        """The message for a worker to run the request for a few tokens."""
        message, limits = self.submit(), self.submission.limits
        most = min(limits.max_tokens, len(self.emitted) + _TRIAL_TOKENS)
        shorter = replace(self.submission, limits=replace(limits, max_tokens=most))
        return Submit(shorter, message.emitted)

    def note(self, update: RequestUpdate, now_s: float) -> RequestUpdate:
        """Take an update in; returns it with the progress under all submissions."""
        self._latest = update.progress
        if self._earlier is not NOTHING_YET:
            progress = _sum(self._earlier, update.progress)
            update = update._replace(progress=progress, queued_s=self.queued_s)
        self.progress, self.queued_s = update.progress, update.queued_s
        self.last_update_s = now_s
        self.emitted += update.tokens
        return update

    def is_complete(self, max_context: int) -> bool:
        """Whether it has all the tokens that it may have. An offered prompt has none here."""
        if self.submission.transfer.kind == "offer":
            return True
        num_tokens = len(self.submission.prompt) + len(self.emitted)
        return len(self.emitted) >= self.submission.limits.max_tokens or num_tokens >= max_context

    def fail(self, failure: RequestFailure) -> RequestUpdate:
        """The last update of a request that cannot go on, for `note`."""
        return RequestUpdate(
            request_id=self.submission.request_id,
            tokens=(),
            logprobs=(),
            finish="error",
            progress=self._latest,  # `note` adds the earlier ones
            queued_s=self.queued_s,
            failure=failure,
        )


def _sum(earlier: Progress, later: Progress) -> Progress:
    return Progress(
        cached=earlier.cached,
        rounds=earlier.rounds + later.rounds,
        drafted=earlier.drafted + later.drafted,
        accepted_per_depth=_sums(earlier.accepted_per_depth, later.accepted_per_depth),
        preemptions=earlier.preemptions + later.preemptions,
    )


def _sums(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip_longest(first, second, fillvalue=0))
