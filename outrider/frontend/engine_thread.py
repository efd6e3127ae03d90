"""A thread that steps an engine while there are requests, and wakes those who wait for them."""

import logging
import threading
from collections.abc import Callable

from outrider.errors import CapacityError, OutriderError
from outrider.frontend.frontend import Frontend
from outrider.frontend.request_state import PreparedRequest, RequestState

_log = logging.getLogger(__name__)


class _Watch:
    """A request and how many of its tokens were seen."""

    def __init__(self, request: RequestState, wake: Callable[[], None]) -> None:
        self.request = request
        self._wake = wake
        self._seen = (0, False)

    def look(self) -> None:
        """Wake the reader if the request has something new."""
        num_tokens = sum(len(output.token_ids) for output in self.request.outputs)
        found = (num_tokens, self.request.is_finished)
        if found != self._seen:
            self._seen = found
            self._wake()

    def end(self) -> None:
        self._wake()


class EngineThread:
    """Owns the thread and the requests that are watched. It ends with `stop` or the process."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._changed = threading.Condition()
        self._watches: dict[str, _Watch] = {}  # by request id
        self._is_stopped = False
        self._failure: OutriderError | None = None  # why the engine steps no more
        self._thread = threading.Thread(target=self._run, daemon=True, name="engine")
        self._thread.start()

    def check(self) -> None:
        """Raise if no request can run any more."""
        if self._failure is not None:
            raise self._failure
        if self._is_stopped:
            raise CapacityError("this AsyncLLM was shut down; load the model again")

    def submit(self, prepared: PreparedRequest, wake: Callable[[], None]) -> RequestState:
        """Submit a request. `wake` is called in the thread whenever it has something new."""
        self.check()
        request = self._frontend.submit(prepared)
        with self._changed:
            watch = self._watches[request.request_id] = _Watch(request, wake)
            watch.look()  # another thread may have run it already
            if self._failure is not None:
                watch.end()
            self._changed.notify_all()
        return request

    def abort(self, request: RequestState) -> None:
        """End a request; its reader is woken."""
        self._frontend.abort(request)
        with self._changed:
            if request.request_id in self._watches:
                self._watches[request.request_id].look()

    def look_at_all(self) -> None:
        """Wake the readers of requests that another thread has ended."""
        with self._changed:
            for watch in self._watches.values():
                watch.look()

    def close(self, request: RequestState) -> None:
        """The reader has left: watch the request no more, and end it unless it has ended."""
        with self._changed:
            self._watches.pop(request.request_id, None)
        self._frontend.abort(request)

    def stop(self) -> None:
        """Abort all requests and end the thread."""
        with self._changed:
            self._is_stopped = True
            watches = list(self._watches.values())
            self._changed.notify_all()
        self._thread.join()
        for watch in watches:
            self.abort(watch.request)

    def _run(self) -> None:
        while self._wait_for_requests():
            try:
                self._frontend.step()
            except OutriderError as error:  # the device is lost
                self._failure = error
            except Exception as error:
                _log.exception("the engine failed outside of a step")
                self._failure = CapacityError(
                    f"the engine failed with {type(error).__name__}; load the model again"
                )
            with self._changed:
                for watch in self._watches.values():
                    watch.end() if self._failure else watch.look()
                if self._failure:
                    return

    def _wait_for_requests(self) -> bool:
        """False once the thread has to end."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._is_stopped
                    or any(not each.request.is_finished for each in self._watches.values())
                )
            )
            return not self._is_stopped
