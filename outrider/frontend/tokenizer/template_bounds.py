"""A sandbox for chat templates that also bounds their time and the sizes of their values.

A template comes with a model and runs for every chat request, so it must not hold the server.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from types import BuiltinMethodType
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

# Of this thread's processor time, for one rendering. A message takes 10 to 100 microseconds.
FIRST_SECONDS = 0.1
MESSAGE_SECONDS = 0.001
MOST_SECONDS = 1.0
MOST_LENGTH = 1 << 24  # of one text or list; a request body has at most half as many bytes
_MOST_BITS = 4096  # of an integer
_STEPS_PER_CHECK = 64  # reading the clock takes as long as several steps

_WIDTH = re.compile(r"\d{6,}")  # in a format such as "%1000000d"
_PADDING = frozenset({"batch", "center", "indent", "ljust", "rjust", "slice", "tojson", "zfill"})


class TemplateLimitError(TemplateError):
    """A template takes too long, or makes values that are too large."""


class _Budget:
    """Owns what is left of one rendering."""

    def __init__(self, num_messages: int) -> None:
        self._limit_s = min(FIRST_SECONDS + MESSAGE_SECONDS * num_messages, MOST_SECONDS)
        self._end_s = time.thread_time() + self._limit_s
        self._num_steps = 0
        self._num_written = 0

    def step(self) -> None:
        self._num_steps += 1
        if self._num_steps % _STEPS_PER_CHECK:
            return
        time.sleep(0)  # lets a thread that waits for the GIL run now, not in 5 ms
        if time.thread_time() > self._end_s:
            raise TemplateLimitError(f"it runs for more than {self._limit_s:.2g} s")

    def write(self, length: int) -> None:
        self._num_written += length
        if self._num_written > 2 * MOST_LENGTH:
            raise TemplateLimitError(f"it writes more than {2 * MOST_LENGTH} characters")


_BUDGET: ContextVar[_Budget | None] = ContextVar("budget", default=None)  # None: it is compiled


@contextmanager
def bounded_rendering(num_messages: int) -> Iterator[None]:
    """Bound what the templates of this environment do inside the block."""
    token = _BUDGET.set(_Budget(num_messages))
    try:
        yield
    finally:
        _BUDGET.reset(token)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Counts every call, filter, operator and loop iteration, and checks the sizes of results."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, *, filters: Mapping[str, Callable[..., Any]], **options: Any) -> None:
        super().__init__(finalize=_written, **options)
        del self.globals["lipsum"]  # its loop cannot be interrupted
        known = {**self.filters, **filters}
        self.filters = {name: _bounded_filter(name, each) for name, each in known.items()}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _Counting().visit(tree)
        tree.set_environment(self)
        return tree

    def call(self, context: Context, function: Any, /, *args: Any, **named: Any) -> Any:
        """Call a function for a template. The names of arguments are the template's."""
        _step()
        _check_text_method(function, args)
        return _within(super().call(context, function, *args, **named))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _step()
        _check_operands(operator, left, right)
        return _within(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """The sandbox's form of `str.format`. Refuses wide fields before it runs."""
        apply = super().wrap_str_format(value)
        if apply is None:
            return None

        def bounded(*args: Any, **named: Any) -> str:
            _check_amounts("format", (value.__self__, *args, *named.values()))
            return apply(*args, **named)

        return bounded

    def step(self) -> bool:
        """True; `call` has counted it. Loops call this in every iteration."""
        return True

    def within(self, value: Any) -> Any:
        """The value; `call` has checked its size."""
        return value


class _Counting(NodeTransformer):
    """Inserts calls into loops and around `~`, which have no hooks of their own."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_own_call("step", node.lineno), lineno=node.lineno))
        if node.test is not None:
            counted = _own_call("step", node.lineno)
            node.test = nodes.And(counted, node.test, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        return _own_call("within", node.lineno, node)


def _own_call(method: str, line: int, *args: nodes.Expr) -> nodes.Call:
    function = nodes.EnvironmentAttribute(method, lineno=line)
    return nodes.Call(function, list(args), [], None, None, lineno=line)


def _bounded_filter(name: str, apply: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(apply)  # keeps the attributes by which jinja knows what to pass
    def bounded(*args: Any, **named: Any) -> Any:
        _step()
        _check_amounts(name, (*args, *named.values()))
        return _within(apply(*args, **named))

    return bounded


def _written(value: Any) -> Any:
    """Count what a template writes, also into a variable."""
    budget = _BUDGET.get()
    if budget is not None and isinstance(value, Sized):
        budget.write(len(value))
    return value


def _step() -> None:
    if (budget := _BUDGET.get()) is not None:
        budget.step()


def _within(value: Any) -> Any:
    """The value of an expression, unless it is too large."""
    if isinstance(value, str | bytes | list | tuple):
        _check_length(len(value))
    elif isinstance(value, int):
        _check_bits(value.bit_length())
    return value


def _check_length(length: int) -> None:
    if length > MOST_LENGTH:
        raise TemplateLimitError(f"it makes a text or list longer than {MOST_LENGTH}")


def _check_bits(num_bits: int) -> None:
    if num_bits > _MOST_BITS:
        raise TemplateLimitError(f"it computes with numbers of more than {_MOST_BITS} bits")


def _check_operands(operator: str, left: Any, right: Any) -> None:
    """Refuse an operation before it takes memory and time; a sum is checked when it is there."""
    if operator == "*":
        for times, value in ((left, right), (right, left)):
            if isinstance(times, int) and isinstance(value, str | bytes | list | tuple):
                _check_length(times * len(value))
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * abs(right))
    elif operator == "%" and isinstance(left, str):
        _check_amounts("format", (left, right))


def _check_text_method(function: Any, args: tuple[Any, ...]) -> None:
    """Refuse a method of a text whose result would be too long."""
    if isinstance(function, BuiltinMethodType) and isinstance(function.__self__, str):
        _check_amounts(function.__name__, (function.__self__, *args))


def _check_amounts(name: str, args: tuple[Any, ...]) -> None:
    """Refuse widths, counts and replacements of a filter or a method of a text that are too large.

    The first argument is the value that it works on.
    """
    if name in ("format", "format_map"):
        texts = [each for each in args if isinstance(each, str)]
        if any(_WIDTH.search(text) for text in texts[:1]) or any(map(_is_long, _flat(args[1:]))):
            raise TemplateLimitError("it formats with a width that is too large")
    elif name in _PADDING and any(map(_is_long, args[1:])):
        raise TemplateLimitError(f"it uses {name} with a number that is too large")
    elif name in ("replace", "join"):
        texts = [each for each in args if isinstance(each, str)]
        if name == "replace" and len(texts) > 2:
            _check_length(len(texts[0]) + texts[0].count(texts[1]) * len(texts[2]))
        if name == "join" and (lists := [each for each in args if isinstance(each, list | tuple)]):
            _check_length(len(lists[0]) * sum(map(len, texts)))


def _flat(args: tuple[Any, ...]) -> list[Any]:
    return [each for arg in args for each in (arg if isinstance(arg, list | tuple) else (arg,))]


def _is_long(value: object) -> bool:
    return isinstance(value, int) and abs(value) > MOST_LENGTH
