"""The memory that all calls in flight may take together, and the share of each call."""

import threading
from collections.abc import Callable

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider.frontend.call_cost import CallCost
from outrider.server.http_errors import ApiError

MIB = 2**20
# A body is held as bytes, as JSON values and as the checked request: a token id of one digit takes
# two bytes of the body and up to 36 as an object of Python.
BODY_FACTOR = 16
# Tokenising returns ids and, on request, strings: one per character at most.
TEXT_FACTOR = 64

_KEY = "outrider.call_memory"  # in the scope of a request


class MemoryBudget:
    """Owns the count of bytes that calls in flight take. Threads share it."""

    def __init__(self, max_bytes: int, on_idle: Callable[[int], None] = lambda _: None) -> None:
        """`on_idle` is called when the last call has ended, with the most that was taken."""
        self.max_bytes = max_bytes
        self._on_idle = on_idle
        self._lock = threading.Lock()
        self._taken = 0
        self._most_taken = 0  # since no call took anything

    @property
    def taken(self) -> int:
        return self._taken

    def take(self, num_bytes: int) -> bool:
        """Take that many bytes if there is room for them; fewer than 0 are given back."""
        with self._lock:
            if num_bytes > 0 and self._taken + num_bytes > self.max_bytes:
                return False
            self._taken += num_bytes
            self._most_taken = max(self._most_taken, self._taken)
            return True

    def give_back(self, num_bytes: int) -> None:
        with self._lock:
            self._taken -= num_bytes
            assert self._taken >= 0, "a call gives back what it took"
            most, is_idle = self._most_taken, not self._taken
            if is_idle:
                self._most_taken = 0
        if is_idle and num_bytes:
            self._on_idle(most)


class CallMemory:
    """What one call has taken from the budget; it gives all of it back when it ends."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._taken = 0
        self._admitted = 0  # for requests; the rest is for the body

    def admit(self, cost: CallCost) -> None:
        """Take the memory that the requests of this call need, in place of an earlier cost."""
        self.take(cost.num_bytes - self._admitted)
        self._admitted = cost.num_bytes

    def take(self, num_bytes: int) -> None:
        """Take more memory, or refuse the call. Fewer than 0 bytes are given back."""
        if not self._budget.take(num_bytes):
            raise self._refusal(self._taken + num_bytes)
        self._taken += num_bytes

    def close(self) -> None:
        self._budget.give_back(self._taken)
        self._taken = self._admitted = 0

    def _refusal(self, wanted: int) -> ApiError:
        limit = self._budget.max_bytes
        if wanted > limit:
            return ApiError(
                400,
                f"the request takes up to {wanted // MIB} MiB and all requests together may take "
                f"{limit // MIB}; send less in one request, or start the server with a larger "
                "--request-memory",
            )
        return ApiError(
            429,
            f"the request takes up to {wanted // MIB} MiB, and other requests leave less than that "
            f"of the {limit // MIB} MiB of --request-memory; try again later",
            code="memory_full",
        )


class CallMemoryMiddleware:
    """Gives every call its share, counts the body as it arrives, and takes all back at the end."""

    def __init__(self, app: ASGIApp, budget: MemoryBudget) -> None:
        self._app = app
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        memory = CallMemory(self._budget)
        scope[_KEY] = memory

        async def receive_counted() -> Message:
            message = await receive()
            memory.take(len(message.get("body", b"")) * BODY_FACTOR)
            return message

        try:
            await self._app(scope, receive_counted, send)
        finally:
            memory.close()


def memory_of(request: Request) -> CallMemory:
    """The share of the call that this request is."""
    memory = request.scope[_KEY]
    assert isinstance(memory, CallMemory), "the middleware runs before every route"
    return memory
