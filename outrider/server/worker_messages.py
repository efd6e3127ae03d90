"""What the front and the engine's worker say to each other, as typed messages in msgpack."""

import msgspec

from outrider.config.engine_config import EngineConfig
from outrider.wire.engine_stats import EngineStats
from outrider.wire.runner_facts import RunnerFacts
from outrider.wire.submission import RequestUpdate, Submission


class WorkerOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is to load and where it is to report; it comes on its standard input."""

    folder: str
    config: EngineConfig
    endpoint: str  # of ZMQ


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Queue a request."""

    submission: Submission


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Nobody wants the rest of a request."""

    request_id: str


class StatsRequest(msgspec.Struct, frozen=True, tag=True):
    """Say how full the engine is, after everything that was sent before."""

    ticket: int


class AskFlush(msgspec.Struct, frozen=True, tag=True):
    """Forget all cached prefixes, and answer as to `AskCensus`."""

    ticket: int


class Loading(msgspec.Struct, frozen=True, tag=True):
    """How many of the shapes to record before the first request are done."""

    done: int
    total: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded."""

    facts: RunnerFacts


class Unable(msgspec.Struct, frozen=True, tag=True):
    """The model cannot be loaded, and trying again would not help."""

    reason: str


class News(msgspec.Struct, frozen=True, tag=True):
    """The outcome of a step."""

    updates: tuple[RequestUpdate, ...]
    stats: EngineStats


class StatsReply(msgspec.Struct, frozen=True, tag=True):
    """The answer to the question with this ticket."""

    ticket: int
    stats: EngineStats


Down = Submit | Abort | StatsRequest | AskFlush
Up = Loading | Ready | Unable | News | StatsReply

_encoder = msgspec.msgpack.Encoder()
_down = msgspec.msgpack.Decoder(Down)
_up = msgspec.msgpack.Decoder(Up)


def encode(message: Down | Up) -> bytes:
    return _encoder.encode(message)


def decode_down(frame: bytes) -> Down:
    """What the front said."""
    message: Down = _down.decode(frame)
    return message


def decode_up(frame: bytes) -> Up:
    """What the worker said."""
    message: Up = _up.decode(frame)
    return message
