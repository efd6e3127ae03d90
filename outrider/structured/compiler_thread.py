"""The thread that talks to the compiler process, and the life of that process."""

import contextlib
import importlib.util
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from outrider.config.install_hint import install_hint
from outrider.errors import CapacityError, RequestError
from outrider.structured.compiler_process import COMPILED
from outrider.structured.grammar_bounds import NAMES
from outrider.structured.wait_for_input import wait_for_input
from outrider.wire.grammar_spec import GrammarSpec, Vocabulary

TIMEOUT_S = 5.0  # an ordinary schema takes a fraction of a second
START_TIMEOUT_S = 120.0  # to import the library on a busy machine


class CompilerThread:
    """Owns the compiler process, started when first needed, and a thread that waits for it.

    The thread is a daemon: the exit of this process does not wait for grammars.
    """

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        self._vocabulary = vocabulary
        self._tasks: queue.SimpleQueue[tuple[GrammarSpec, Future[str]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None  # until the first grammar
        self._process: _CompilerProcess | None = None  # until the first grammar, and after a crash
        self._is_stopped = False

    def submit(self, spec: GrammarSpec) -> "Future[str]":
        """Compile a spec after those that were submitted before. Not for two threads at a time."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="grammar", daemon=True)
            self._thread.start()
        future: Future[str] = Future()
        self._tasks.put((spec, future))
        return future

    def stop(self) -> None:
        """Kill the compiler process and cancel what waits. Takes no lock: a finalizer calls it."""
        self._is_stopped = True
        self._tasks.put(None)
        process = self._process
        if process is not None:
            process.kill()

    def join(self) -> None:
        """Wait until the thread has ended, after `stop`."""
        if self._thread is not None:
            self._thread.join()

    def compile(self, spec: GrammarSpec) -> str:
        """The compiled grammar. Runs on the thread."""
        if self._process is not None and not self._process.is_alive:  # this grammar did not kill it
            self._end_process()
        if self._process is None:
            self._process = _start_compiler(self._vocabulary())
        try:
            return self._process.compile(spec)
        except (OSError, EOFError) as error:  # the process crashed or took too long
            self._end_process()
            raise RequestError(
                f"the {NAMES[spec.kind]} is too complex: compiling it took more than "
                f"{TIMEOUT_S:.0f} seconds or too much memory; make it smaller"
            ) from error

    def _run(self) -> None:
        try:
            while (task := self._tasks.get()) is not None:
                spec, future = task
                if self._is_stopped:
                    future.cancel()
                if future.set_running_or_notify_cancel():
                    self._answer(spec, future)
                del task, future  # a waiting thread must not keep a result alive
        finally:
            self._end_process()

    def _answer(self, spec: GrammarSpec, future: "Future[str]") -> None:
        try:
            future.set_result(self.compile(spec))
        except BaseException as error:
            future.set_exception(error)

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


def _start_compiler(vocabulary: Vocabulary) -> "_CompilerProcess":
    if importlib.util.find_spec("xgrammar") is None:
        raise RequestError(f"structured output needs xgrammar: {install_hint('grammar')}")
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
            if left_s <= 0 or not wait_for_input(self._answers, left_s):
                raise TimeoutError
            # Unbuffered: the wait does not see what a buffer holds.
            part = os.read(self._answers.fileno(), missing)
            if not part:
                raise EOFError
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)
