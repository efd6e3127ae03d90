"""The messages between the server process and the worker process: typed, encoded as msgpack."""

from collections.abc import Callable

import msgspec

from outrider.config.engine_config import EngineConfig
from outrider.config.log_settings import LogSettings
from outrider.wire.adapter import Adapter
from outrider.wire.engine_stats import EngineStats
from outrider.wire.runner_facts import RunnerFacts
from outrider.wire.sleep_level import SleepLevel, SleepTag
from outrider.wire.submission import RequestUpdate, Submission


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The model that a worker loads and the socket it connects to; sent on its standard input."""

    folder: str
    config: EngineConfig
    endpoint: str  # of ZMQ
    board: str  # file of the `WorkerBoard`
    log: LogSettings
    listener_fd: int | None  # of the server's socket for other machines


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Queue a request. Tokens that an earlier worker emitted belong to its answer already."""

    submission: Submission
    emitted: tuple[int, ...]


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Stop a request: its client has left, or a stop string ended it."""

    request_id: str


class StatsRequest(msgspec.Struct, frozen=True, tag=True):
    """Ask for the engine's stats after all messages sent before."""

    ticket: int


class FlushRequest(msgspec.Struct, frozen=True, tag=True):
    """Empty the prefix cache, then reply as to `StatsRequest`."""

    ticket: int


class SleepRequest(msgspec.Struct, frozen=True, tag=True):
    """Drop all requests and sleep; answered by `SleepReply`."""

    ticket: int
    level: SleepLevel


class WakeRequest(msgspec.Struct, frozen=True, tag=True):
    """Bring back what the tags name; answered by `SleepReply`."""

    ticket: int
    tags: tuple[SleepTag, ...]


class HeadRequest(msgspec.Struct, frozen=True, tag=True):
    """Drop all requests and draft with another head; answered by `SleepReply`."""

    ticket: int
    folder: str


class AdapterRequest(msgspec.Struct, frozen=True, tag=True):
    """Check an adapter; answered by `AdapterReply`."""

    ticket: int
    adapter: Adapter


class StartOver(msgspec.Struct, frozen=True, tag=True):
    """The answer to `StepFailed`: messages after this one know that the worker has no request."""


class LoadProgress(msgspec.Struct, frozen=True, tag=True):
    """How many of the graphs to capture at start are captured."""

    done: int
    total: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded."""

    facts: RunnerFacts


class LoadFailed(msgspec.Struct, frozen=True, tag=True):
    """The model cannot be loaded, and trying again would not help."""

    reason: str


class StepUpdates(msgspec.Struct, frozen=True, tag=True):
    """The updates of one step of the engine."""

    updates: tuple[RequestUpdate, ...]
    stats: EngineStats


class StepFailed(msgspec.Struct, frozen=True, tag=True):
    """A step failed with these requests. The worker has dropped all its requests, others too.

    It ignores submissions until `StartOver`: they were sent before the server knew.
    """

    request_ids: tuple[str, ...]
    reason: str
    stats: EngineStats


class StatsReply(msgspec.Struct, frozen=True, tag=True):
    """The reply to the request with this ticket."""

    ticket: int
    stats: EngineStats


class AdapterReply(msgspec.Struct, frozen=True, tag=True):
    """Whether the adapter of the request with this ticket can be used."""

    ticket: int
    reason: str  # why not; empty if it can


class SleepReply(msgspec.Struct, frozen=True, tag=True):
    """What sleeps now, and why it is not what the request with this ticket wanted."""

    ticket: int
    asleep: tuple[SleepTag, ...]  # empty if the engine is awake
    reason: str  # empty if it is what was wanted


_Orders = StatsRequest | FlushRequest | SleepRequest | WakeRequest | HeadRequest | AdapterRequest
ToWorker = Submit | Abort | _Orders | StartOver
FromLoadedWorker = StepUpdates | StepFailed | StatsReply | SleepReply | AdapterReply
FromWorker = LoadProgress | Ready | LoadFailed | FromLoadedWorker

encode: Callable[[ToWorker | FromWorker], bytes] = msgspec.msgpack.Encoder().encode
decode_to_worker: Callable[[bytes], ToWorker] = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker: Callable[[bytes], FromWorker] = msgspec.msgpack.Decoder(FromWorker).decode
