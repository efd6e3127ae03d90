"""Where calls meet the engine: each waits for its own news, and nobody for anybody else."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from outrider.errors import CapacityError, RequestError
from outrider.frontend.frontend import Frontend, owner_of
from outrider.frontend.outputs import StreamDelta
from outrider.frontend.request_state import DeltaReader, PreparedRequest, RequestState
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer
from outrider.server.http_errors import restarting
from outrider.server.metrics import Meter
from outrider.server.remote_engine import RemoteEngine
from outrider.server.worker_messages import AskFlush, Down, News, StatsReply, StatsRequest
from outrider.wire.engine_stats import EngineStats
from outrider.wire.step_result import TokenLogprobs

Result = TypeVar("Result")

_NUM_THREADS = 4  # for templates and tokenizers, which would hold up everybody's tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceDelta:
    """What one output gained since the caller last looked."""

    choice: int  # place among all outputs of the call
    request: int  # which of the call's requests
    delta: StreamDelta
    logprobs: tuple[TokenLogprobs, ...]  # one per token when asked, else empty


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncEngineRules:
    """What the owner of a server decides about its callers."""

    ping_s: float = 15.0  # a stream that is silent for so long sends a comment
    has_priorities: bool = False  # whether callers may say who goes first


class RequestHandle:
    """Owns the requests behind one HTTP request, and how far its caller has read them.

    There is no queue between the engine and a slow caller: news add up in the transcripts, which
    the request's own limits bound, and are read as one piece when the caller comes back.
    """

    def __init__(self, lives: Sequence[RequestState]) -> None:
        self.lives = tuple(lives)
        self._woken = asyncio.Event()
        outputs = [
            (request, live, index)
            for request, live in enumerate(self.lives)
            for index in range(len(live.outputs))
        ]
        self._readers = [
            (choice, request, live, DeltaReader(index, live.outputs[index]))
            for choice, (request, live, index) in enumerate(outputs)
        ]

    @property
    def is_finished(self) -> bool:
        return all(live.is_finished for live in self.lives)

    def wake(self) -> None:
        self._woken.set()

    async def finish(self) -> None:
        """Wait for the end of all outputs."""
        while not self.is_finished:
            await self._news()

    async def pieces(self) -> AsyncIterator[ChoiceDelta]:
        """What is new, output by output, until all have ended."""
        while True:
            is_last = self.is_finished
            for choice, request, live, reader in self._readers:
                if reader.has_delta:
                    first = reader.num_tokens
                    delta = reader.take()
                    logprobs = live.outputs[delta.index].logprobs[first : reader.num_tokens]
                    yield ChoiceDelta(
                        choice=choice, request=request, delta=delta, logprobs=tuple(logprobs)
                    )
            if is_last:
                return
            await self._news()

    async def _news(self) -> None:
        await self._woken.wait()
        self._woken.clear()


class AsyncEngine:
    """Owns the front end of one engine, all open calls, and the questions to its worker."""

    def __init__(
        self,
        engine: RemoteEngine,
        tokenizer: Tokenizer | NoTokenizer,
        meter: Meter,
        rules: AsyncEngineRules,
    ) -> None:
        self.engine = engine
        self.rules = rules
        self.meter = meter
        self.frontend = Frontend(engine, tokenizer)
        self.worker_pid = 0
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="text")
        self._calls: dict[str, RequestHandle] = {}  # by the id of each of its requests
        self._tickets = itertools.count()
        self._questions: dict[int, asyncio.Future[EngineStats]] = {}

    @property
    def tokenizer(self) -> Tokenizer | NoTokenizer:
        return self.frontend.tokenizer

    @property
    def is_ready(self) -> bool:
        return self.engine.has_worker

    @property
    def num_calls(self) -> int:
        """Calls whose clients are still there."""
        return len(set(map(id, self._calls.values())))

    async def aside(self, work: Callable[[], Result]) -> Result:
        """Do something long beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def prepare(
        self, work: Callable[[], Sequence[PreparedRequest]]
    ) -> Sequence[PreparedRequest]:
        """Requests made beside the event loop, once their grammars are known to be good.

        No thread waits for a grammar: some are made to take long, and others have texts to read.
        One is ordered when the one before it is there, so a call has one place in the order book.
        """
        prepared = await self.aside(work)
        for each in prepared:
            grammar = each.samplings[0].grammar
            if grammar.is_wanted:
                await asyncio.wrap_future(self.engine.compile_grammar(grammar.spec))
        return prepared

    def open(self, prepared: Sequence[PreparedRequest]) -> RequestHandle:
        """Submit all requests of a call, or none when there is no room for one of them."""
        if any(each.params.priority for each in prepared) and not self.rules.has_priorities:
            raise RequestError(
                "priority is for servers with --scheduling-policy priority; leave it out"
            )
        asked, room = sum(len(each.samplings) for each in prepared), self.engine.room
        if asked > room:
            raise RequestError(
                f"the call asks for {asked} answers and the server holds {room} at a time; send "
                "fewer at once, or start it with a larger --max-queued"
            )
        lives: list[RequestState] = []
        try:
            for each in prepared:
                lives.append(self.frontend.submit(each))  # noqa: PERF401  # kept if the next fails
        except CapacityError:
            self.meter.note_rejection()
            for live in lives:
                self.frontend.abort(live)
            raise
        handle = RequestHandle(lives)
        self._calls.update((live.request_id, handle) for live in lives)
        return handle

    def close(self, handle: RequestHandle) -> None:
        """The caller has what it wanted, or has gone: what still runs is aborted."""
        for live in handle.lives:
            self.frontend.abort(live)
            if self._calls.pop(live.request_id, None) is not None:
                self.meter.note_request(live)

    async def stats(self) -> EngineStats:
        """How full the engine is once it has done what it was told so far."""
        return await self._ask(StatsRequest)

    async def flush(self) -> EngineStats:
        """Forget all cached prefixes."""
        return await self._ask(AskFlush)

    def begin(self, send: Callable[[Down], None], pid: int) -> None:
        self.worker_pid = pid
        self.engine.attach(send)

    def hear(self, message: News | StatsReply) -> None:
        if isinstance(message, StatsReply):
            question = self._questions.pop(message.ticket, None)
            if question is not None and not question.done():
                question.set_result(message.stats)
            return
        self.engine.take(message.updates)
        self._deliver(update.request_id for update in message.updates)
        self.meter.note_stats(message.stats, num_flights=self.engine.num_flights)

    def end(self) -> None:
        self.meter.note_loss()
        self._deliver(self.engine.detach())
        for question in self._questions.values():
            if not question.done():
                question.set_exception(restarting())
        self._questions.clear()

    def _deliver(self, names: Iterable[str]) -> None:
        """Write down what arrived, and wake the calls that these names belong to."""
        self.frontend.step()
        for owner in {owner_of(name) for name in names}:
            if owner in self._calls:
                self._calls[owner].wake()

    async def _ask(self, question: type[StatsRequest] | type[AskFlush]) -> EngineStats:
        if not self.engine.has_worker:
            raise restarting()
        ticket = next(self._tickets)
        answer = self._questions[ticket] = asyncio.get_running_loop().create_future()
        self.engine.send(question(ticket))
        stats: EngineStats = await answer
        return stats
