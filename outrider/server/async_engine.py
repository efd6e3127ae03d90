"""The engine as routes use it: they submit requests and await their deltas on the event loop."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from outrider.config.engine_config import WHOLE_REQUESTS, DisaggregationConfig
from outrider.errors import CapacityError, RequestError
from outrider.frontend.call_cost import Admit, CallLimits, PromptRequest
from outrider.frontend.frontend import Frontend, request_id_of
from outrider.frontend.images.image_prompts import TEXT_ONLY, PromptImages
from outrider.frontend.prompts import TextPrompt, TokenPrompt
from outrider.frontend.request_state import PreparedRequest, RequestState
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer
from outrider.server.http_errors import ending, restarting, unresponsive
from outrider.server.learning import Learning, NoLearning
from outrider.server.metrics import Meter
from outrider.server.remote_replicas import RemoteReplicas
from outrider.server.replica import Replica, ReplicaEvents
from outrider.server.request_handle import RequestHandle
from outrider.server.request_traces import RequestTracer
from outrider.wire.adapter import NO_ADAPTER, Adapter
from outrider.wire.engine_stats import EngineStats, joined_replicas
from outrider.wire.runner_facts import RankFacts
from outrider.wire.sleep_level import SleepLevel, SleepMode, SleepTag
from outrider.wire.submission import RequestUpdate

Result = TypeVar("Result")

_NUM_THREADS = 4  # for templates and tokenizers, which would block the event loop
_NUM_LONG_THREADS = 2  # for texts that take long: short ones do not wait behind them
_NUM_DOWNLOADS = 8  # prompts whose images are downloaded at a time: nothing else waits for hosts
_LONG = 2**16  # characters
_ENDLESS = 2**40  # more characters than any text has: a download
_NUM_AT_ONCE = 32  # requests that are submitted before others are answered: some milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncEngineRules:
    """Settings of the server that concern every request."""

    ping_s: float = 15.0  # a stream that is silent for so long sends a comment
    has_priorities: bool = False  # whether requests may have a priority
    takes_prompt_embeds: bool = False  # whether prompts may be embeddings
    returns_hidden_states: bool = False  # whether requests may want hidden states
    role: DisaggregationConfig = WHOLE_REQUESTS

    def check_embeds(self, has_embeds: bool) -> None:
        """Refuse embeddings unless prompts may be some. Routes ask before they decode any."""
        if has_embeds and not self.takes_prompt_embeds:
            raise RequestError(
                "prompt_embeds are for servers with --enable-prompt-embeds; send text or token ids"
            )


class AsyncEngine:
    """Owns the front end, all open handles, and the replicas of the engine."""

    def __init__(
        self,
        engine: RemoteReplicas,
        tokenizer: Tokenizer | NoTokenizer,
        meter: Meter,
        rules: AsyncEngineRules,
        tracer: RequestTracer,
        images: PromptImages = TEXT_ONLY,
    ) -> None:
        self.engine = engine
        self.rules = rules
        self.meter = meter
        self._tracer = tracer
        self.frontend = Frontend(engine, tokenizer, images)
        self.learning: Learning = NoLearning()
        self.is_leaving = False  # after a signal to end, routers shall send no new requests
        self.is_draining = False  # then no new request is accepted
        events = ReplicaEvents(
            deliver=self._deliver,
            lost=engine.forget_prefixes,
            abort_all=lambda: self.abort(""),
            num_in_flight=lambda: engine.num_in_flight,
        )
        self.replicas = tuple(
            Replica(number, each, meter, events) for number, each in enumerate(engine.replicas)
        )
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="text")
        self._long_threads = ThreadPoolExecutor(_NUM_LONG_THREADS, thread_name_prefix="long text")
        self._download_threads = ThreadPoolExecutor(_NUM_DOWNLOADS, thread_name_prefix="download")
        self._handles: dict[str, RequestHandle] = {}  # by the id of each of its requests

    @property
    def tokenizer(self) -> Tokenizer | NoTokenizer:
        return self.frontend.tokenizer

    @property
    def is_ready(self) -> bool:
        return self.engine.has_worker

    @property
    def ranks(self) -> tuple[RankFacts, ...]:
        """The processes that compute the model."""
        tp_size = self.engine.facts.memory.tp_size
        return tuple(
            replace(rank, rank=number * tp_size + rank.rank)
            for number, each in enumerate(self.replicas)
            for rank in each.ranks
        )

    @property
    def num_open(self) -> int:
        """HTTP requests that are being answered."""
        return len(set(map(id, self._handles.values())))

    async def run_in_thread(self, work: Callable[[], Result], *, size: int = 0) -> Result:
        """The result of something slow, computed off the event loop; `size` is in characters."""
        threads = self._threads if size < _LONG else self._long_threads
        threads = threads if size < _ENDLESS else self._download_threads
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    async def prepare(
        self,
        read: Callable[[], Sequence[PromptRequest]],
        admit: Admit,
        find_adapter: Callable[[], Adapter] = lambda: NO_ADAPTER,  # for requests without their own
    ) -> Sequence[PreparedRequest]:
        """The requests that `read` finds in a body, prepared once `admit` has room for their cost.

        `read` and `find_adapter` run in a thread, and the result comes once the grammars are
        compiled. No thread waits for a grammar: some take long to compile, and there are few
        threads. One grammar is compiled after the other, so an HTTP request fills one place of the
        compiler.
        """
        requests, adapter = await self.run_in_thread(lambda: (read(), find_adapter()))
        if adapter.is_wanted:
            requests = [replace(each, adapter=adapter) for each in requests]
        limits = CallLimits(
            outputs=self.engine.max_requests, hidden_size=self.engine.facts.hidden_size
        )
        prepare = partial(self.frontend.inputs.prepare_call, requests, limits, admit)
        size = sum(prompt_size(each.prompt) for each in requests)
        prepared = await self.run_in_thread(prepare, size=size)
        for each in prepared:
            grammar = each.samplings[0].grammar
            if grammar.is_wanted:
                await asyncio.wrap_future(self.engine.compile_grammar(grammar.spec))
        return prepared

    async def submit(self, prepared: Sequence[PreparedRequest]) -> RequestHandle:
        """Submit the requests of one HTTP request: all, or none if there is no room for one."""
        if self.is_draining:
            raise ending()
        if any(each.params.priority for each in prepared) and not self.rules.has_priorities:
            raise RequestError(
                "priority is for servers with --scheduling-policy priority; leave it out"
            )
        self._check_permissions(prepared)
        self._check_role(prepared)
        requests: list[RequestState] = []
        try:
            for each in prepared:
                requests.append(self.frontend.submit(each))
                if not len(requests) % _NUM_AT_ONCE:
                    await asyncio.sleep(0)  # lets other requests be answered
        except BaseException as error:  # there is no room, or this task is cancelled
            if isinstance(error, CapacityError):
                self.meter.note_rejection()
            for request in requests:
                self.frontend.abort(request)
            raise
        handle = RequestHandle(requests)
        self._handles.update((request.request_id, handle) for request in requests)
        for replica in self.replicas:
            replica.sleeping.note_request()
        self.note_load()
        return handle

    def _check_permissions(self, prepared: Sequence[PreparedRequest]) -> None:
        self.rules.check_embeds(any(each.embeds for each in prepared))
        has_states = any(each.params.hidden_states_mode != "none" for each in prepared)
        if has_states and not self.rules.returns_hidden_states:
            raise RequestError(
                "return_hidden_states is for servers with --enable-return-hidden-states; "
                "leave it out"
            )

    def _check_role(self, prepared: Sequence[PreparedRequest]) -> None:
        """A prefill server has no shapes to decode with: it takes prompts from routers only."""
        if self.rules.role.mode != "prefill":
            return
        if any(each.transfer.kind == "none" and each.limits.max_tokens > 1 for each in prepared):
            raise RequestError(
                "this server only computes prompts (--disaggregation-mode prefill); send requests "
                "to the router, or to a decode server"
            )

    def leave(self) -> None:
        """Tell routers by `/health` to send requests elsewhere; those that come are answered."""
        self.is_leaving = True

    def drain(self) -> None:
        """Accept no new request from now on."""
        self.is_draining = True

    def close(self, handle: RequestHandle) -> None:
        """The client has its answer or has left: abort what still runs."""
        for request in handle.requests:
            self.frontend.abort(request)
            if self._handles.pop(request.request_id, None) is not None:
                self.meter.note_request(request)
                self._tracer.note_request(request)
                self.learning.note_request(request)
        self.note_load()

    def note_load(self) -> None:
        """Tell the learner whether it may compute."""
        self.learning.note_load(is_idle=not self._handles and not self.is_sleeping)

    def abort(self, name: str) -> int:
        """End the requests of this name, or all without one; returns how many there were."""
        handles = {id(each): each for each in self._handles.values()}.values()
        aborted = [each for each in handles if not name or name in each.names]
        for handle in aborted:
            for request in handle.requests:
                self.frontend.abort(request)
            handle.wake()
        return len(aborted)

    def check_health(self) -> None:
        """Raise the reason why the engine cannot answer now, if there is one."""
        if self.is_leaving:
            raise ending()
        up = self._up()
        if all(each.trouble for each in up):
            raise unresponsive(up[0].trouble)

    def _up(self) -> list[Replica]:
        """The replicas that have a worker; raises if none has."""
        up = [each for each in self.replicas if each.engine.has_worker]
        if not up:
            raise restarting()
        return up

    async def stats(self) -> EngineStats:
        """The stats of all replicas after all messages that were sent to them before."""
        return joined_replicas(await asyncio.gather(*(each.stats() for each in self._up())))

    async def flush(self) -> EngineStats:
        """Empty the prefix caches."""
        stats = await asyncio.gather(*(each.flush() for each in self._up()))
        for number in range(len(self.replicas)):
            self.engine.forget_prefixes(number)
        return joined_replicas(stats)

    async def check_adapter(self, adapter: Adapter) -> None:
        """Refuse an adapter that a worker cannot use."""
        reasons = await asyncio.gather(*(each.check_adapter(adapter) for each in self._up()))
        if any(reasons):
            raise RequestError(next(filter(None, reasons)))

    async def sleep(self, level: SleepLevel, mode: SleepMode) -> None:
        """Let requests wait, and all workers sleep."""
        self.learning.note_load(is_idle=False)  # an engine that sleeps wants its memory back
        try:
            await asyncio.gather(*(each.sleeping.sleep(level, mode) for each in self.replicas))
        finally:
            self.note_load()

    async def wake_up(self, tags: tuple[SleepTag, ...]) -> None:
        await asyncio.gather(*(each.sleeping.wake_up(tags) for each in self.replicas))
        self.note_load()

    @property
    def is_sleeping(self) -> bool:
        return any(each.sleeping.asleep for each in self.replicas)

    def _deliver(self, updates: Sequence[RequestUpdate]) -> None:
        """Add updates to the outputs of their requests, and wake the clients that wait for them."""
        self.frontend.deliver(updates)
        for request_id in {request_id_of(update.request_id) for update in updates}:
            if request_id in self._handles:
                self._handles[request_id].wake()


def prompt_size(prompt: TextPrompt | TokenPrompt) -> int:
    """How long it takes to tokenize, in characters; an image takes as long as a long text.

    A host may take seconds to send one.
    """
    if isinstance(prompt, TokenPrompt):
        return 0
    num_remote = sum(image.is_remote for image in prompt.images)
    return len(prompt.text) + _LONG * len(prompt.images) + _ENDLESS * num_remote
