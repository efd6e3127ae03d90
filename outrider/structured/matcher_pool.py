"""The grammars of an engine: compiled, and each loaded into a matcher process."""

import time
import weakref
from collections import OrderedDict
from concurrent.futures import Future

from outrider.errors import RequestError
from outrider.structured.fork_server import ForkServer
from outrider.structured.grammar_cache import MAX_CACHED, Grammars
from outrider.structured.grammar_loader import GrammarLoader, LoadTask
from outrider.structured.loaded_grammar import LoadedGrammar
from outrider.structured.shared_masks import SharedMasks, create_masks
from outrider.wire.grammar_spec import GrammarSpec

MAX_IDLE = 8  # processes that are kept though no step used them lately
IDLE_S = 10.0


class MatcherPool:
    """Owns loaded grammars by spec. Their processes end when the pool is dropped.

    Only the thread of the engine uses it.
    """

    def __init__(self, grammars: Grammars, *, mask_rows: int, mask_words: int) -> None:
        self._grammars = grammars
        self._size = (mask_rows, mask_words)
        self._masks: SharedMasks | None = None  # until the first grammar
        self._tasks: OrderedDict[GrammarSpec, LoadTask] = OrderedDict()  # last used at the end
        self._loader: GrammarLoader | None = None  # until the first grammar

    @property
    def masks(self) -> SharedMasks:
        """The memory that matcher processes write masks to."""
        if self._masks is None:
            rows, words = self._size
            self._masks = create_masks(rows=rows, words=words)
        return self._masks

    @property
    def fork_server(self) -> ForkServer:
        return self._grammars.fork_server

    def check(self, spec: GrammarSpec) -> None:
        """Compile a spec and wait; raise the reason if it is refused. For any thread."""
        self._grammars.check(spec)

    def compile(self, spec: GrammarSpec) -> "Future[str]":
        """Start to compile and load a grammar. The future is done once both are."""
        return self._task(spec).done

    def loaded(self, spec: GrammarSpec) -> LoadedGrammar:
        """The grammar of a request that is admitted. Waits only if it was evicted meanwhile."""
        task = self._task(spec)
        task.done.result()
        return task.loaded

    def _task(self, spec: GrammarSpec) -> LoadTask:
        if spec not in self._tasks or _is_lost(self._tasks[spec]):
            self._tasks[spec] = self._load(spec)
            self._close_idle()
        self._tasks.move_to_end(spec)
        return self._tasks[spec]

    def _load(self, spec: GrammarSpec) -> LoadTask:
        text = self._grammars.compile(spec)
        if self._loader is None:
            self._loader = GrammarLoader(self._grammars)
            weakref.finalize(self, self._loader.stop)
        task = LoadTask(text, self.masks)
        self._loader.put(task)
        return task

    def _close_idle(self) -> None:
        """End processes that no running row has and no step used lately."""
        before_s = time.monotonic() - IDLE_S
        loaded = [each.loaded for each in self._tasks.values() if _is_loaded(each)]
        idle = [each for each in loaded if not each.is_in_use and each.used_s < before_s]
        for each in idle[: max(len(idle) - MAX_IDLE, 0)]:
            each.close()
        for spec in list(self._tasks)[: max(len(self._tasks) - MAX_CACHED, 0)]:
            del self._tasks[spec]


def _is_loaded(task: LoadTask) -> bool:
    return task.done.done() and task.done.exception() is None


def _is_lost(task: LoadTask) -> bool:
    """Whether a grammar must be loaded again. One that was refused is not tried again."""
    if not task.done.done():
        return False
    error = task.done.exception()
    return not task.loaded.is_alive if error is None else not isinstance(error, RequestError)
