"""Compiled grammars by spec. A second process compiles them within bounds of time and memory."""

import contextlib
import importlib.util
import math
import os
import pickle
import select
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from outrider.errors import CapacityError, RequestError
from outrider.structured.compiler_process import COMPILED
from outrider.structured.grammar_bounds import NAMES
from outrider.wire.grammar_spec import GrammarSpec, Vocabulary

TIMEOUT_S = 5.0  # an ordinary schema takes a fraction of a second
START_TIMEOUT_S = 120.0  # to import the library on a busy machine
MAX_CACHED = 64  # compiled grammars, a few megabytes each
MAX_PENDING = 32  # grammars that wait for the compiler: minutes, if each takes TIMEOUT_S
_NO_TEXT = "structured output needs a tokenizer, and this engine has none"


class Grammars(Protocol):
    """What an engine needs of a grammar cache. Specs come within `grammar_bounds`."""

    def check(self, spec: GrammarSpec) -> None:
        """Compile a spec and wait; raise the reason if it is refused. May take seconds."""
        ...

    def compile(self, spec: GrammarSpec) -> "Future[str]":
        """Start to compile a spec, or return the future of an equal one."""
        ...

    def vocabulary(self) -> Vocabulary:
        """The bytes of each token id of the model."""
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

    def vocabulary(self) -> Vocabulary:
        return read_no_vocabulary()


NO_GRAMMARS = NoGrammars()


class GrammarCache:
    """Owns the compiler process, started when first needed, and the grammars it has compiled.

    Refusals are cached, too, so a grammar that is too complex costs its time only once.
    """

    def __init__(
        self,
        read_vocabulary: Callable[[], Vocabulary],
        *,
        vocab_size: int,
        max_pending: float = math.inf,
    ) -> None:
        self._read_vocabulary = read_vocabulary
        self._max_pending = max_pending
        self._vocab_size = vocab_size  # of the model
        self._futures: OrderedDict[GrammarSpec, Future[str]] = OrderedDict()  # last used at the end
        self._lock = threading.Lock()  # callers may be threads of a server
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._process: _CompilerProcess | None = None  # until the first grammar, and after a crash
        self._vocabulary: Vocabulary | None = None  # until it is read

    def check(self, spec: GrammarSpec) -> None:
        self.compile(spec).result()

    def compile(self, spec: GrammarSpec) -> "Future[str]":
        with self._lock:
            if spec not in self._futures:
                self._check_room()
                self._futures[spec] = self._thread.submit(self._compile, spec)
                _drop_oldest(self._futures)
            self._futures.move_to_end(spec)
            return self._futures[spec]

    def vocabulary(self) -> Vocabulary:
        """Read once. Ids of the model past the end of its tokenizer's vocabulary have no bytes."""
        if self._vocabulary is None:
            pieces = self._read_vocabulary().pieces[: self._vocab_size]
            missing = self._vocab_size - len(pieces)
            self._vocabulary = Vocabulary(pieces=(*pieces, *[b""] * missing))
        return self._vocabulary

    def close(self) -> None:
        """End the compiler process at once. Grammars that are not compiled yet are refused."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        process = self._process
        if process is not None:
            process.kill()
        self._thread.shutdown()
        self._end_process()

    def _check_room(self) -> None:
        num_pending = sum(not future.done() for future in self._futures.values())
        if num_pending >= self._max_pending:
            raise CapacityError(f"{num_pending} grammars are waiting already; try again later")

    def _compile(self, spec: GrammarSpec) -> str:
        """Runs on the one thread of this class."""
        if self._process is not None and not self._process.is_alive:  # this grammar did not kill it
            self._end_process()
        if self._process is None:
            self._process = _start_compiler(self.vocabulary())
        try:
            return self._process.compile(spec)
        except (OSError, EOFError) as error:  # the process crashed or took too long
            self._end_process()
            raise RequestError(
                f"the {NAMES[spec.kind]} is too complex: compiling it took more than "
                f"{TIMEOUT_S:.0f} seconds or too much memory; make it smaller"
            ) from error

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


def _drop_oldest(futures: "OrderedDict[GrammarSpec, Future[str]]") -> None:
    """Evict the least recently used grammars. One that is still being compiled stays."""
    done = (spec for spec, future in futures.items() if future.done())
    for spec in list(done)[: max(len(futures) - MAX_CACHED, 0)]:
        del futures[spec]


def _start_compiler(vocabulary: Vocabulary) -> "_CompilerProcess":
    if importlib.util.find_spec("xgrammar") is None:
        raise RequestError("structured output needs xgrammar: pip install 'outrider[grammar]'")
    try:
        return _CompilerProcess(vocabulary)
    except (OSError, EOFError) as error:
        raise CapacityError("the compiler of grammars does not start; see the log") from error


class _CompilerProcess:
    """Owns one compiler process and the pipes to it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "outrider.structured.compiler_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C at the terminal must not reach it
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._send(vocabulary)
        self._read(START_TIMEOUT_S)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def compile(self, spec: GrammarSpec) -> str:
        """The compiled grammar. Raises EOFError if the process died, TimeoutError if it is slow."""
        self._send(spec)
        status, text = self._read(TIMEOUT_S)
        if status != COMPILED:
            raise RequestError(text)
        return text

    def kill(self) -> None:
        """A read that is waiting for the process returns with EOFError."""
        self._process.kill()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):  # it died before it read everything
            self._requests.close()
        self._answers.close()

    def _send(self, message: Vocabulary | GrammarSpec) -> None:
        pickle.dump(message, self._requests)
        self._requests.flush()

    def _read(self, timeout_s: float) -> tuple[bytes, str]:
        deadline_s = time.monotonic() + timeout_s
        head = self._receive(9, deadline_s)
        body = self._receive(int.from_bytes(head[1:], "big"), deadline_s)
        return head[:1], body.decode()

    def _receive(self, num_bytes: int, deadline_s: float) -> bytes:
        parts, missing = [], num_bytes
        while missing:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([self._answers], [], [], left_s)[0]:
                raise TimeoutError
            # Unbuffered: `select` does not see what a buffer holds.
            part = os.read(self._answers.fileno(), missing)
            if not part:
                raise EOFError
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)
