"""`LLM` for asyncio, in vLLM's shape: many requests at once, each an async iteration."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from outrider.errors import RequestError
from outrider.frontend.engine_thread import EngineThread
from outrider.frontend.llm import LLM
from outrider.frontend.lora_request import LoRARequest
from outrider.frontend.outputs import RequestOutput
from outrider.frontend.prompts import Message, Prompt
from outrider.frontend.request_state import RequestState
from outrider.frontend.sampling_params import SamplingParams
from outrider.hub.aliases import DEFAULT_ALIAS

Result = TypeVar("Result")

_NUM_THREADS = 4  # for templates, tokenizers and waiting for a step to end


class AsyncLLM:
    """Owns an `LLM`, and a thread that steps its engine while there are requests.

    It takes the arguments of `LLM`. All requests run in one batch, also those of `llm` itself.
    """

    def __init__(self, model: str | Path = DEFAULT_ALIAS, **arguments: Any) -> None:
        self.llm = LLM(model, **arguments)
        self._frontend = self.llm.frontend
        self._engine_thread = EngineThread(self._frontend)
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="async-llm")
        self._ids = (f"request-{number}" for number in itertools.count())
        self._requests: dict[str, RequestState | None] = {}  # by the user's id; None: not begun

    async def generate(
        self,
        prompt: Prompt | Sequence[Message],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        lora_request: LoRARequest | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The output so far, after every step that emitted something; the last one is finished.

        Leaving the iteration early aborts the request.
        """
        self._engine_thread.check()
        name = self._reserve(request_id)
        try:
            prepare = self.llm.prepare
            prepared = await self._in_thread(lambda: prepare(prompt, sampling_params, lora_request))
            event, loop = asyncio.Event(), asyncio.get_running_loop()
            wake = _waker(loop, event)
            request = await self._in_thread(
                lambda: self._engine_thread.submit(prepared, wake), undo=self._engine_thread.close
            )
            self._requests[name] = request
            try:
                async for output in self._outputs(request, event):
                    yield replace(output, request_id=name)
            finally:
                self._leave(request)
        finally:
            del self._requests[name]

    async def abort(self, request_id: str) -> None:
        """End a request: its iteration yields what it has, with finish reason "abort"."""
        request = self._requests.get(request_id)
        if request is not None:
            await self._in_thread(lambda: self._engine_thread.abort(request))

    async def sleep(self, level: int = 1) -> None:
        """As `LLM.sleep`. Running iterations yield what they have, with finish reason "abort"."""
        await self._in_thread(lambda: self.llm.sleep(level))
        self._engine_thread.look_at_all()

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """As `LLM.wake_up`."""
        await self._in_thread(lambda: self.llm.wake_up(tags))

    async def is_sleeping(self) -> bool:
        return self.llm.is_sleeping()

    def shutdown(self) -> None:
        """Abort all requests and end the threads. The model stays loaded until it is dropped."""
        self._engine_thread.stop()
        self._threads.shutdown(wait=True)

    async def _outputs(
        self, request: RequestState, event: asyncio.Event
    ) -> AsyncGenerator[RequestOutput, None]:
        num_seen = -1
        while True:
            await event.wait()
            event.clear()
            with self._frontend.reading():
                output = request.output()
            if not output.finished:
                self._engine_thread.check()
                # A step may have ended between two wakes: the second one then has nothing new.
                if output.usage.completion_tokens == num_seen:
                    continue
            num_seen = output.usage.completion_tokens
            yield output
            if output.finished:
                return

    def _leave(self, request: RequestState) -> None:
        """End a request whose reader has left, without waiting for the step that runs now."""
        with suppress(RuntimeError):  # after `shutdown`, which has ended all requests
            self._threads.submit(self._engine_thread.close, request)

    def _reserve(self, request_id: str | None) -> str:
        name = request_id or next(self._ids)
        if name in self._requests:
            raise RequestError(f"request id {name!r} is already in use; choose another one")
        self._requests[name] = None
        return name

    async def _in_thread(
        self, work: Callable[[], Result], undo: Callable[[Result], object] | None = None
    ) -> Result:
        """The result of something slow. If the caller is cancelled meanwhile, it is undone."""
        future = self._threads.submit(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel() and undo is not None:
                future.add_done_callback(lambda done: _undo(done, undo))
            raise


def _undo(done: "Future[Result]", undo: Callable[[Result], object]) -> None:
    if not done.cancelled() and done.exception() is None:
        undo(done.result())


def _waker(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> Callable[[], None]:
    def wake() -> None:
        with suppress(RuntimeError):  # the loop is closed: there is no reader any more
            loop.call_soon_threadsafe(event.set)

    return wake
