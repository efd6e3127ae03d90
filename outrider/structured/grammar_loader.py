"""The thread that loads compiled grammars into matcher processes, beside the steps."""

import itertools
import logging
import queue
import threading
from concurrent.futures import Future

from outrider.errors import CapacityError, RequestError
from outrider.structured.fork_server import ForkServer
from outrider.structured.grammar_cache import Grammars
from outrider.structured.loaded_grammar import LoadedGrammar
from outrider.structured.shared_masks import SharedMasks

_STOP = 0
_log = logging.getLogger(__name__)


class LoadTask:
    """A grammar that is compiled, then loaded."""

    def __init__(self, text: "Future[str]", masks: SharedMasks) -> None:
        self.text = text
        self.done: Future[str] = Future()
        self._masks = masks
        self._loaded: LoadedGrammar | None = None  # until done

    @property
    def loaded(self) -> LoadedGrammar:
        assert self._loaded is not None, "the task is done"
        return self._loaded

    def run(self, server: ForkServer) -> None:
        """Load the grammar, whose text is compiled or refused."""
        try:
            text = self.text.result()
            server.start()
            self._loaded = LoadedGrammar(text, lambda: server.fork(self._masks.fd), self._masks)
        except (OSError, EOFError) as error:
            reason = "the grammar cannot be loaded to match it; see the log and try again"
            self.done.set_exception(CapacityError(reason))
            _log.warning("a matcher process did not start: %r", error)
        except BaseException as error:
            self.done.set_exception(error)
        else:
            self.done.set_result(text)


class GrammarLoader:
    """Owns the thread. It is a daemon: the exit of this process does not wait for grammars."""

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._compiled: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._tasks: dict[int, LoadTask] = {}
        self._numbers = itertools.count(1)
        self._thread = threading.Thread(target=self._run, name="grammar loader", daemon=True)
        self._thread.start()

    def put(self, task: LoadTask) -> None:
        """Load a grammar once it is compiled."""
        number, compiled = next(self._numbers), self._compiled
        self._tasks[number] = task
        # A cache keeps its futures and their callbacks, so this one does not refer to the task.
        task.text.add_done_callback(lambda _: compiled.put(number))

    def stop(self) -> None:
        """End the thread. Takes no lock: a finalizer calls it."""
        self._compiled.put(_STOP)

    def _run(self) -> None:
        self._start_early()
        while (number := self._compiled.get()) != _STOP:
            self._tasks.pop(number).run(self._grammars.fork_server)

    def _start_early(self) -> None:
        """Start the fork server while the first grammar is compiled; both take seconds."""
        try:
            self._grammars.fork_server.start()
        except (CapacityError, RequestError) as error:
            _log.info("the first grammar is loaded later: %s", error)
