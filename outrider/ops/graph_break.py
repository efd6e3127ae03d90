"""Host calls that a graph cannot hold. Every replay makes them again, between its segments."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Call = Callable[..., None]


def call_now(call: Call, *args: Any) -> None:
    """The handler without a capture, and inside a break: the call is simply made."""
    call(*args)


_break_handler: ContextVar[Call] = ContextVar("break_handler", default=call_now)
_is_capturing: ContextVar[bool] = ContextVar("is_capturing", default=False)


def graph_break(call: Call, *args: Any) -> None:
    """Make a call here, and at this point of every replay.

    The call returns nothing: it writes its results to tensors among its arguments. A capture stores
    the arguments once, so they must be tensors at fixed addresses or plain data.
    """
    _break_handler.get()(call, *args)


@contextmanager
def handle_breaks(handler: Call) -> Iterator[None]:
    """Pass every graph break inside, and its arguments, to the handler."""
    token = _break_handler.set(handler)
    try:
        yield
    finally:
        _break_handler.reset(token)


@contextmanager
def capturing() -> Iterator[None]:
    """Inside, operations are captured and not run. The step itself has run before, so when capture
    fails (in a drafter, for example) no result is lost.
    """
    token = _is_capturing.set(True)
    try:
        yield
    finally:
        _is_capturing.reset(token)


def is_capturing() -> bool:
    """Whether the program is being captured, not run."""
    return _is_capturing.get()
