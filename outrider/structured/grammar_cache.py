"""Compiled grammars by spec: compiled once, elsewhere, within bounds of time and memory."""

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
from outrider.structured.grammar_bounds import NAMES, check_bounds
from outrider.wire.grammar_spec import GrammarSpec, Vocabulary

TIMEOUT_S = 5.0  # an ordinary schema takes a fraction of a second
START_TIMEOUT_S = 120.0  # to import the library on a busy machine
_NO_TEXT = "structured output needs a tokenizer, and this engine has none"
MAX_KEPT = 64  # compiled grammars, a few megabytes each
MAX_ORDERED = 32  # grammars that wait to be compiled: minutes, if all are bombs


class Grammars(Protocol):
    """What an engine needs to know about grammars."""

    def check(self, spec: GrammarSpec) -> None:
        """Refuse a spec that cannot be used, with the reason; may take seconds."""
        ...

    def order(self, spec: GrammarSpec) -> "Future[str]":
        """The compiled grammar, on its way."""
        ...

    def vocabulary(self) -> Vocabulary:
        """What each id of the model spells."""
        ...


def read_no_vocabulary() -> Vocabulary:
    """The vocabulary of an engine that knows no text."""
    raise RequestError(_NO_TEXT)


class NoGrammars:
    """For an engine that knows no text: everything is refused."""

    def check(self, spec: GrammarSpec) -> None:
        self.order(spec).result()

    def order(self, spec: GrammarSpec) -> "Future[str]":
        del spec
        refusal: Future[str] = Future()
        refusal.set_exception(RequestError(_NO_TEXT))
        return refusal

    def vocabulary(self) -> Vocabulary:
        return read_no_vocabulary()


NO_GRAMMARS = NoGrammars()


class GrammarCache:
    """Owns the compiling process, started when first needed, and what it has compiled.

    What was refused is remembered, too: the same bomb costs its time once.
    """

    def __init__(
        self,
        read_vocabulary: Callable[[], Vocabulary],
        *,
        vocab_size: int,
        max_ordered: float = math.inf,
    ) -> None:
        self._read_vocabulary = read_vocabulary
        self._max_ordered = max_ordered
        self._vocab_size = vocab_size  # of the model
        self._known: OrderedDict[GrammarSpec, Future[str]] = OrderedDict()
        self._lock = threading.Lock()  # callers may be threads of a server
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._smiths: list[
            _CompilerProcess
        ] = []  # one, or none before the first and after a fallen one
        self._vocabularies: list[Vocabulary] = []  # likewise

    def check(self, spec: GrammarSpec) -> None:
        self.order(spec).result()

    def order(self, spec: GrammarSpec) -> "Future[str]":
        check_bounds(spec)
        with self._lock:
            if spec not in self._known:
                self._check_room()
                self._known[spec] = self._thread.submit(self._compile, spec)
                _drop_oldest(self._known)
            self._known.move_to_end(spec)
            return self._known[spec]

    def vocabulary(self) -> Vocabulary:
        """Read once. Models have ids past the end of a vocabulary; they spell nothing."""
        if not self._vocabularies:
            pieces = self._read_vocabulary().pieces[: self._vocab_size]
            missing = self._vocab_size - len(pieces)
            self._vocabularies.append(Vocabulary(pieces=(*pieces, *[b""] * missing)))
        return self._vocabularies[0]

    def close(self) -> None:
        """End the compiling process, whatever it is at: who still waits is refused."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        for compiler_process in self._smiths:
            compiler_process.kill()
        self._thread.shutdown()
        for compiler_process in self._smiths:
            compiler_process.end()
        self._smiths.clear()

    def _check_room(self) -> None:
        num_ordered = sum(not order.done() for order in self._known.values())
        if num_ordered >= self._max_ordered:
            raise CapacityError(f"{num_ordered} grammars are waiting already; try again later")

    def _compile(self, spec: GrammarSpec) -> str:
        if self._smiths and not self._smiths[0].is_alive:  # of something else than this grammar
            self._smiths.pop().end()
        if not self._smiths:
            self._smiths.append(_start_compiler(self.vocabulary()))
        try:
            return self._smiths[0].compile(spec)
        except (OSError, EOFError) as error:  # it fell, or took too long
            self._smiths.pop().end()
            raise RequestError(
                f"the {NAMES[spec.kind]} is too complex: compiling it took more than "
                f"{TIMEOUT_S:.0f} seconds or too much memory; make it smaller"
            ) from error


def _drop_oldest(known: "OrderedDict[GrammarSpec, Future[str]]") -> None:
    """Forget what was used longest ago, but nothing that somebody may still wait for."""
    done = (spec for spec, future in known.items() if future.done())
    for spec in list(done)[: max(len(known) - MAX_KEPT, 0)]:
        del known[spec]


def _start_compiler(vocabulary: Vocabulary) -> "_CompilerProcess":
    if importlib.util.find_spec("xgrammar") is None:
        raise RequestError("structured output needs xgrammar: pip install 'outrider[grammar]'")
    try:
        return _CompilerProcess(vocabulary)
    except (OSError, EOFError) as error:
        raise CapacityError("the compiler of grammars does not start; see the log") from error


class _CompilerProcess:
    """Owns one compiling process."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "outrider.structured.compiler_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # an interrupt at the terminal is not meant for it
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._tell, self._hear = self._process.stdin, self._process.stdout
        self._send(vocabulary)
        self._read(START_TIMEOUT_S)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def compile(self, spec: GrammarSpec) -> str:
        """The compiled grammar; raises EOFError or TimeoutError if that was too much."""
        self._send(spec)
        status, text = self._read(TIMEOUT_S)
        if status != COMPILED:
            raise RequestError(text)
        return text

    def kill(self) -> None:
        """Whoever reads of it hears its end."""
        self._process.kill()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):  # it may have fallen with words unread
            self._tell.close()
        self._hear.close()

    def _send(self, message: Vocabulary | GrammarSpec) -> None:
        pickle.dump(message, self._tell)
        self._tell.flush()

    def _read(self, timeout_s: float) -> tuple[bytes, str]:
        deadline_s = time.monotonic() + timeout_s
        head = self._take(9, deadline_s)
        body = self._take(int.from_bytes(head[1:], "big"), deadline_s)
        return head[:1], body.decode()

    def _take(self, num_bytes: int, deadline_s: float) -> bytes:
        parts, missing = [], num_bytes
        while missing:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([self._hear], [], [], left_s)[0]:
                raise TimeoutError
            part = os.read(self._hear.fileno(), missing)  # past any buffer, which `select` ignores
            if not part:
                raise EOFError
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)
