"""From a submission to a request: its place in the queue, its budget, the key of its prompt."""

from outrider.engine.embedded_prompts import EmbeddedPrompts
from outrider.engine.request import Request
from outrider.wire.runner_facts import RunnerFacts, StepRunner
from outrider.wire.submission import Submission


class NewRequests:
    """Owns the order of arrival, and what is known of embeddings in prompts."""

    def __init__(self, facts: RunnerFacts) -> None:
        self._facts = facts
        self._embedded = EmbeddedPrompts(most_ids=facts.num_pages * facts.host.page_size)
        self._num_arrived = 0

    def make(self, submission: Submission, emitted: tuple[int, ...], runner: StepRunner) -> Request:
        """A request that no other one comes before; `runner` knows the embeddings of tokens."""
        self._num_arrived += 1
        draft, known = self._facts.draft, self._embedded.resolve(submission, runner)
        return Request(
            known.submission,
            emitted=emitted,
            key=known.key,
            budget=submission.budget.within(draft.budget),
            arrival=self._num_arrived,
            max_context=self._facts.host.max_context,
            is_paced=draft.is_paced,
        )
