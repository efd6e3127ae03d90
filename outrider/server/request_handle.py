"""The requests behind one HTTP request, and how far its client has read them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from outrider.frontend.outputs import StreamDelta
from outrider.frontend.request_state import DeltaReader, RequestState
from outrider.wire.step_result import TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceDelta:
    """The new tokens and text of one output since its client last read."""

    choice: int  # place among all outputs of the handle
    request: int  # place of its request in the handle
    delta: StreamDelta
    logprobs: tuple[TokenLogprobs, ...]  # one per token if requested, else empty


class RequestHandle:
    """Owns the engine's requests behind one HTTP request, and how far its client has read them.

    There is no queue between the engine and a slow client. New tokens add up in the outputs, which
    the limits of the request bound, and the client gets them as one delta when it reads again.
    """

    def __init__(self, requests: Sequence[RequestState]) -> None:
        self.requests = tuple(requests)
        self.names: tuple[str, ...] = ()  # by which a client may abort it
        self._woken = asyncio.Event()
        outputs = [
            (place, request, index)
            for place, request in enumerate(self.requests)
            for index in range(len(request.outputs))
        ]
        self._readers = [
            (choice, place, request, DeltaReader(index, request.outputs[index]))
            for choice, (place, request, index) in enumerate(outputs)
        ]

    @property
    def is_finished(self) -> bool:
        return all(request.is_finished for request in self.requests)

    def wake(self) -> None:
        """Let the waiting client look for new tokens."""
        self._woken.set()

    async def finish(self) -> None:
        """Wait for the end of all outputs."""
        while not self.is_finished:
            await self._wait()

    async def deltas(self) -> AsyncIterator[ChoiceDelta]:
        """Yields the delta of each output until all outputs have ended."""
        while True:
            is_last = self.is_finished
            for choice, place, request, reader in self._readers:
                while reader.has_delta:
                    first = reader.num_tokens
                    delta = reader.take()
                    logprobs = request.outputs[delta.index].logprobs[first : reader.num_tokens]
                    yield ChoiceDelta(
                        choice=choice, request=place, delta=delta, logprobs=tuple(logprobs)
                    )
            if is_last:
                return
            await self._wait()

    async def _wait(self) -> None:
        await self._woken.wait()
        self._woken.clear()
