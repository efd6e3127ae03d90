"""Calls that no recording can hold. They are made anew on every replay, between its segments."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Call = Callable[..., None]


def _make_now(call: Call, *args: Any) -> None:
    call(*args)


_listener: ContextVar[Call] = ContextVar("live_calls", default=_make_now)
_is_capturing: ContextVar[bool] = ContextVar("capturing", default=False)


def graph_break(call: Call, *args: Any) -> None:
    """Make a call here, and at this place of every replay.

    It returns nothing: what it computes goes to tensors among its arguments. A recorder keeps the
    arguments as they are at this moment, so they must be tensors at fixed addresses or plain data.
    """
    _listener.get()(call, *args)


@contextmanager
def handle_breaks(listener: Call) -> Iterator[None]:
    """Hand every live call made inside, and its arguments, to the listener."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def capturing() -> Iterator[None]:
    """What runs inside computes nothing: it is only recorded, and may fail without loss."""
    token = _is_capturing.set(True)
    try:
        yield
    finally:
        _is_capturing.reset(token)


def is_capturing() -> bool:
    """Whether the program is only being recorded."""
    return _is_capturing.get()
