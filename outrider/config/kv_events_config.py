"""Where events of the prefix cache are published: the JSON of `--kv-events-config`, as in vLLM."""

import json
from dataclasses import dataclass, replace
from typing import Any, Literal

from outrider.errors import ConfigError

_DEFAULT_ENDPOINT = "tcp://*:5557"
_PUBLISHERS = ("zmq", "null")
_SCHEMES = ("tcp://", "ipc://")
_TEXTS = ("endpoint", "replay_endpoint", "topic")
_COUNTS = ("buffer_steps", "hwm", "max_queue_size")
_EXAMPLE = '\'{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557"}\''


@dataclass(frozen=True, slots=True, kw_only=True)
class KVEventsConfig:
    """The sockets that tell routers which prefixes are cached. Fields are vLLM's."""

    publisher: Literal["null", "zmq"] = "null"
    endpoint: str = _DEFAULT_ENDPOINT  # bound with a wildcard or ipc://, else connected to
    replay_endpoint: str = ""  # empty: no replay
    buffer_steps: int = 10_000  # batches that can be replayed
    hwm: int = 100_000  # batches that wait for one slow subscriber, before it loses some
    max_queue_size: int = 100_000  # batches that wait to be published, before some are lost
    topic: str = ""
    rank: int = 0  # of the first engine; each has ports of its own

    @property
    def is_on(self) -> bool:
        return self.publisher == "zmq"

    def at_rank(self, rank: int) -> "KVEventsConfig":
        """The same for the engine at this data-parallel rank: ports and paths differ by it."""
        return replace(
            self,
            rank=self.rank + rank,
            endpoint=_at_rank(self.endpoint, rank),
            replay_endpoint=_at_rank(self.replay_endpoint, rank),
        )


NO_KV_EVENTS = KVEventsConfig()


def parse_kv_events(text: str) -> KVEventsConfig:
    """The config of a JSON object; an empty text publishes nothing."""
    if not text:
        return NO_KV_EVENTS
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"--kv-events-config must be a JSON object such as {_EXAMPLE} ({error})"
        ) from error
    if not isinstance(given, dict):
        raise ConfigError(f"--kv-events-config must be a JSON object such as {_EXAMPLE}")
    is_enabled = given.pop("enable_kv_cache_events", given.get("publisher") == "zmq")
    if not isinstance(is_enabled, bool):
        raise ConfigError("--kv-events-config: enable_kv_cache_events must be true or false")
    publisher = given.pop("publisher", None) or "zmq"
    if publisher not in _PUBLISHERS:
        raise ConfigError(f"--kv-events-config: publisher must be zmq or null, got {publisher!r}")
    fields: dict[str, Any] = {**_texts(given), **_counts(given)}
    if given:
        raise ConfigError(
            f"--kv-events-config has no field {', '.join(sorted(given))}; it has "
            f"enable_kv_cache_events, publisher, {', '.join(_TEXTS + _COUNTS)}"
        )
    if not is_enabled or publisher == "null":
        return NO_KV_EVENTS
    return KVEventsConfig(publisher="zmq", **fields)


def _texts(given: dict[str, object]) -> dict[str, str]:
    """The fields that are texts; null stands for the default, as in vLLM."""
    found = {}
    for name in _TEXTS:
        value = given.pop(name, None)
        if value is None:
            continue
        if not isinstance(value, str):
            raise ConfigError(f"--kv-events-config: {name} must be a text, got {value!r}")
        if name != "topic" and value:
            _check_endpoint(name, value)
        found[name] = value
    return found


def _check_endpoint(name: str, value: str) -> None:
    port = value.rpartition(":")[2]
    is_tcp_with_port = port.isdecimal() and 0 < int(port) < 2**16
    if not value.startswith(_SCHEMES) or (value.startswith("tcp://") and not is_tcp_with_port):
        raise ConfigError(
            f"--kv-events-config: {name} must be tcp://HOST:PORT (* for all addresses) or "
            f"ipc://PATH, got {value!r}"
        )


def _counts(given: dict[str, object]) -> dict[str, int]:
    found = {}
    for name in _COUNTS:
        value = given.pop(name, None)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
            raise ConfigError(f"--kv-events-config: {name} must be a number above 0, got {value!r}")
        found[name] = value
    return found


def _at_rank(endpoint: str, rank: int) -> str:
    if not endpoint or not rank:
        return endpoint
    if endpoint.startswith("ipc://"):
        return f"{endpoint}_dp{rank}"
    host, _, port = endpoint.rpartition(":")
    return f"{host}:{int(port) + rank}"
