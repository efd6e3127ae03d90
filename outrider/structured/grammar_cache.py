"""Compiled grammars by spec. A second process compiles them within bounds of time and memory."""

import functools
import math
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from outrider.errors import CapacityError, RequestError
from outrider.structured.compiler_thread import CompilerThread
from outrider.structured.fork_server import ForkServer
from outrider.wire.grammar_spec import GrammarSpec, Vocabulary

MAX_CACHED = 64  # compiled grammars, a few megabytes each
MAX_PENDING = 32  # grammars that wait for the compiler: minutes, if each takes its 5 seconds
_NO_TEXT = "structured output needs a tokenizer, and this engine has none"


class Grammars(Protocol):
    """What an engine needs of a grammar cache. Specs come within `grammar_bounds`."""

    def check(self, spec: GrammarSpec) -> None:
        """Compile a spec and wait; raise the reason if it is refused. May take seconds."""
        ...

    def compile(self, spec: GrammarSpec) -> "Future[str]":
        """Start to compile a spec, or return the future of an equal one."""
        ...

    @property
    def fork_server(self) -> ForkServer:
        """The process that matcher processes are forked from."""
        ...


def read_no_vocabulary() -> Vocabulary:
    """Stands in for the vocabulary of an engine without a tokenizer: refuses."""
    raise RequestError(_NO_TEXT)


class NoGrammars:
    """The grammar cache of an engine without a tokenizer: refuses every spec."""

    def check(self, spec: GrammarSpec) -> None:
        self.compile(spec).result()

    def compile(self, spec: GrammarSpec) -> "Future[str]":
        del spec
        refusal: Future[str] = Future()
        refusal.set_exception(RequestError(_NO_TEXT))
        return refusal

    @property
    def fork_server(self) -> ForkServer:
        return ForkServer(read_no_vocabulary)


NO_GRAMMARS = NoGrammars()


class GrammarCache:
    """Owns compiled grammars, the compiler process and the fork server of matchers.

    Both processes end when the cache is dropped. Each is started when it is first needed.

    Refusals are cached, too, so a grammar that is too complex costs its time only once.
    """

    def __init__(
        self,
        read_vocabulary: Callable[[], Vocabulary],
        *,
        vocab_size: int,
        max_pending: float = math.inf,
    ) -> None:
        self._max_pending = max_pending
        self._futures: OrderedDict[GrammarSpec, Future[str]] = OrderedDict()  # last used at the end
        self._lock = threading.Lock()  # callers may be threads of a server
        vocabulary = functools.cache(lambda: _resized(read_vocabulary(), vocab_size))
        self.fork_server = ForkServer(vocabulary)
        self._compiler = CompilerThread(vocabulary)
        # The compiler must not refer to this cache: nothing would then end the compiler process.
        weakref.finalize(self, self._compiler.stop)

    def check(self, spec: GrammarSpec) -> None:
        self.compile(spec).result()

    def compile(self, spec: GrammarSpec) -> "Future[str]":
        with self._lock:
            if spec not in self._futures:
                self._check_room()
                self._futures[spec] = self._compiler.submit(spec)
                _drop_oldest(self._futures)
            self._futures.move_to_end(spec)
            return self._futures[spec]

    def close(self) -> None:
        """End both processes at once. Grammars that are not compiled yet are refused."""
        self.fork_server.close()
        self._compiler.stop()
        self._compiler.join()

    def _check_room(self) -> None:
        num_pending = sum(not future.done() for future in self._futures.values())
        if num_pending >= self._max_pending:
            raise CapacityError(f"{num_pending} grammars are waiting already; try again later")


def _resized(vocabulary: Vocabulary, size: int) -> Vocabulary:
    """Ids of the model past the end of its tokenizer's vocabulary have no bytes."""
    pieces = vocabulary.pieces[:size]
    return Vocabulary(pieces=(*pieces, *[b""] * (size - len(pieces))))


def _drop_oldest(futures: "OrderedDict[GrammarSpec, Future[str]]") -> None:
    """Evict the least recently used grammars. One that is still being compiled stays."""
    done = (spec for spec, future in futures.items() if future.done())
    for spec in list(done)[: max(len(futures) - MAX_CACHED, 0)]:
        del futures[spec]
