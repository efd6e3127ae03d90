"""Engines of other processes that hold the same model, with the interface of one of them."""

from collections.abc import Sequence
from concurrent.futures import Future

from outrider.server.choose_replica import ReplicaChooser
from outrider.server.remote_engine import RemoteEngine
from outrider.wire.adapter import Adapter
from outrider.wire.embedded_span import EmbeddedSpan
from outrider.wire.grammar_spec import GrammarSpec
from outrider.wire.runner_facts import RunnerFacts
from outrider.wire.submission import Limits, RequestUpdate, Submission

_DOWN = 2**31  # requests more than any replica has: one without a worker is chosen last


class RemoteReplicas:
    """Gives each request to one replica, which keeps it to its end. Replicas never wait for others.

    Usually there is one.
    """

    def __init__(self, replicas: Sequence[RemoteEngine]) -> None:
        self.replicas = tuple(replicas)
        self._chooser = ReplicaChooser(len(self.replicas))

    @property
    def facts(self) -> RunnerFacts:
        """The sizes of one replica; all have the same."""
        return self.replicas[0].facts

    @property
    def max_context(self) -> int:
        return self.replicas[0].max_context

    @property
    def vocab_size(self) -> int:
        return self.replicas[0].vocab_size

    @property
    def has_work(self) -> bool:
        return any(each.has_work for each in self.replicas)

    @property
    def has_worker(self) -> bool:
        """Whether one of them can run requests."""
        return any(each.has_worker for each in self.replicas)

    @property
    def max_requests(self) -> int:
        """Requests that may run or wait at the same time."""
        return sum(each.max_requests for each in self.replicas)

    @property
    def num_in_flight(self) -> int:
        return sum(each.num_in_flight for each in self.replicas)

    def check(
        self, prompt: tuple[int, ...], limits: Limits, embeds: Sequence[EmbeddedSpan] = ()
    ) -> None:
        self.replicas[0].check(prompt, limits, embeds)

    def check_grammar(self, spec: GrammarSpec) -> None:
        self.replicas[0].check_grammar(spec)

    def check_adapter(self, adapter: Adapter) -> None:
        self.replicas[0].check_adapter(adapter)

    def compile_grammar(self, spec: GrammarSpec) -> "Future[str]":
        return self.replicas[0].compile_grammar(spec)

    def add(self, submission: Submission) -> None:
        loads = [each.num_in_flight + (not each.has_worker) * _DOWN for each in self.replicas]
        self.replicas[self._chooser.choose(submission, loads)].add(submission)

    def abort(self, request_id: str) -> None:
        for each in self.replicas:
            each.abort(request_id)

    def step(self) -> tuple[RequestUpdate, ...]:
        raise AssertionError("the workers step; their updates come by `RemoteEngine.receive`")

    def forget_prefixes(self, replica: int) -> None:
        """The prefix cache of a replica is empty."""
        self._chooser.forget(replica)
