"""The outcomes of a run so far: the driver writes them, the display and the report read them."""

from outrider.bench.serve.request_outcome import Failure, Outcome, ServerAnswer


class LoadJournal:
    """Owns the outcomes. Requests that the user cut short have a start only."""

    def __init__(self) -> None:
        self.answers: list[ServerAnswer] = []
        self.failures: list[Failure] = []
        self.lates_s: list[float] = []  # one for every request that was started
        self.num_running = 0
        self.num_chunks = 0  # of all requests, those under way included
        self._answered = (0, 0)  # tokens and chunks of the answers

    def note_start(self, late_s: float) -> None:
        self.num_running += 1
        self.lates_s.append(late_s)

    def note_chunk(self) -> None:
        self.num_chunks += 1

    def note_stop(self) -> None:
        """A request has ended, in any way."""
        self.num_running -= 1

    def note_outcome(self, outcome: Outcome) -> None:
        if isinstance(outcome, Failure):
            self.failures.append(outcome)
            return
        self.answers.append(outcome)
        tokens, chunks = self._answered
        self._answered = (tokens + outcome.tokens.output, chunks + len(outcome.timeline.texts_s))

    @property
    def num_ended(self) -> int:
        return len(self.answers) + len(self.failures)

    @property
    def num_unfinished(self) -> int:
        return len(self.lates_s) - self.num_ended

    @property
    def tokens_per_chunk(self) -> float:
        """Mean over the answers so far; 1 until there is one."""
        tokens, chunks = self._answered
        return tokens / chunks if chunks else 1.0
