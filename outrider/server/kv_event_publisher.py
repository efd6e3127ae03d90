"""Publishes what happens to cached prefixes over ZMQ, in vLLM's form.

    live     SUB     <- (topic, sequence, batch)
    replay   DEALER  -> ("", first sequence), <- ("", topic, sequence, batch) ..., ("", "", -1, "")

A sequence is 8 bytes, the highest first. A batch is msgpack: [time, events, data-parallel rank].
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq

from outrider.config.kv_events_config import KVEventsConfig
from outrider.engine.prefix_cache.page_events import PageEvents
from outrider.engine.prefix_cache.prefix_cache import PrefixCache
from outrider.errors import ConfigError
from outrider.wire.cache_events import NO_PARENT, BlocksRemoved, BlocksStored, CacheEvent

_MEDIUM = "GPU"  # vLLM's word for the cache that steps read, on any device
_END = (-1).to_bytes(8, "big", signed=True)
_BOUND = ("*", "::", "ipc://")  # vLLM's rule: endpoints with one of these are bound

_log = logging.getLogger(__name__)
_encode = msgspec.msgpack.Encoder().encode


class KVEventPublisher:
    """Owns the sockets of one engine, and the thread that uses them.

    A batch that finds the queue full is lost. Subscribers see the gap in the sequence.
    """

    def __init__(self, config: KVEventsConfig, events: PageEvents) -> None:
        self._config = config
        self._events = events
        self._next = 0  # sequence number
        self._context = zmq.Context()
        self._queue = self._context.socket(zmq.PAIR)
        self._queue.set_hwm(config.max_queue_size)
        self._queue.bind("inproc://batches")
        try:
            sender = _Sender(self._context, config)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ConfigError(
                f"KV events cannot be published at {config.endpoint} {config.replay_endpoint} "
                f"({error}); change endpoint or replay_endpoint in --kv-events-config"
            ) from error
        self._thread = threading.Thread(target=sender.run, daemon=True, name="kv-events")
        self._thread.start()

    def publish(self) -> None:
        """Send what happened since the last call, if anything did."""
        events = self._events.take()
        if not events:
            return
        batch = [time.time(), [self._event(each) for each in events], self._config.rank]
        sequence = self._next.to_bytes(8, "big")
        self._next += 1
        try:
            self._queue.send_multipart((sequence, _encode(batch)), flags=zmq.NOBLOCK)
        except zmq.Again:
            _log.warning("a batch of KV events is lost: max_queue_size others wait")

    def close(self) -> None:
        """End the thread after what is queued, and free the ports."""
        self._queue.send_multipart((b"", b""))  # no batch has an empty sequence
        self._thread.join()
        self._context.destroy(linger=0)

    def _event(self, event: CacheEvent) -> dict[str, Any]:
        """An event as vLLM writes it."""
        if isinstance(event, BlocksStored):
            others = [None] * (len(event.hashes) - 1)
            return {
                "type": "BlockStored",
                "block_hashes": event.hashes,
                "parent_block_hash": None if event.parent == NO_PARENT else event.parent,
                "token_ids": event.tokens,
                "block_size": self._events.page_size,
                "lora_id": None,
                "medium": _MEDIUM,
                "lora_name": event.adapter or None,
                "extra_keys": [[event.salt] if event.salt else None, *others],
            }
        if isinstance(event, BlocksRemoved):
            return {"type": "BlockRemoved", "block_hashes": event.hashes, "medium": _MEDIUM}
        return {"type": "AllBlocksCleared"}


class _Sender:
    """The sockets as their thread sees them."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", config: KVEventsConfig) -> None:
        self._is_over = False
        self._topic = config.topic.encode()
        self._buffer: deque[tuple[bytes, bytes]] = deque(maxlen=config.buffer_steps)
        self._queue = context.socket(zmq.PAIR)
        self._queue.set_hwm(config.max_queue_size)
        self._queue.connect("inproc://batches")
        self._live = context.socket(zmq.PUB)
        self._live.set_hwm(config.hwm)
        is_bound = any(each in config.endpoint for each in _BOUND)
        (self._live.bind if is_bound else self._live.connect)(config.endpoint)
        self._replay = context.socket(zmq.ROUTER)
        self._replay.set_hwm(config.buffer_steps + 1)  # one replay is never cut
        if config.replay_endpoint:
            self._replay.bind(config.replay_endpoint)

    def run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._queue, zmq.POLLIN)
        poller.register(self._replay, zmq.POLLIN)
        while not self._is_over:
            ready = dict(poller.poll())
            self._send_queued()  # first: a replay has all that was published before it
            if self._replay in ready:
                self._answer(self._replay.recv_multipart())
        for socket in (self._queue, self._live, self._replay):
            socket.close(linger=0)

    def _send_queued(self) -> None:
        while self._queue.poll(0) and not self._is_over:
            sequence, batch = self._queue.recv_multipart()
            if sequence:
                self._buffer.append((sequence, batch))
                self._live.send_multipart((self._topic, sequence, batch))
            else:
                self._is_over = True

    def _answer(self, request: Sequence[bytes]) -> None:
        if len(request) != 3 or len(request[2]) != 8:
            _log.warning("a subscriber of KV events asked for a replay in another form")
            return
        client, _, first = request
        for sequence, batch in self._buffer:
            if sequence >= first:
                self._replay.send_multipart((client, b"", self._topic, sequence, batch))
        self._replay.send_multipart((client, b"", b"", _END, b""))


def open_kv_events(config: KVEventsConfig, caches: Sequence[PrefixCache]) -> list[KVEventPublisher]:
    """A publisher for the cache of each rank, or none."""
    if not config.is_on:
        return []
    if not all(cache.is_enabled for cache in caches):
        _log.warning("the prefix cache is off, by its flag or for this model: no KV events come")
    _log.info("KV events, with the tokens of prompts, are published at %s", config.endpoint)
    return [
        KVEventPublisher(config.at_rank(rank), cache.record_events())
        for rank, cache in enumerate(caches)
    ]
