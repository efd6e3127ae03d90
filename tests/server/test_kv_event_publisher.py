"""A real subscriber of KV events: live, by replay, and with a server in its own process."""

import json
import socket

import msgspec
import pytest
import zmq
from support.served import LONG_S, ServerProcess, wait_for
from support.spoken import tiny_llama, write_tokenizer

from outrider.config.kv_events_config import KVEventsConfig, parse_kv_events
from outrider.engine.prefix_cache.prefix_cache import PrefixCache
from outrider.errors import ConfigError
from outrider.server.kv_event_publisher import KVEventPublisher
from outrider.wire.adapter import Adapter, prefix_salt

SQL = Adapter(path="/adapters/sql", version="1", name="sql")


class BlockStored(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """The fields that vLLM 0.26 sends, with its types: its subscribers decode so."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str, ...] | None] | None = None


class BlockRemoved(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    pass


class KVEventBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


decode = msgspec.msgpack.Decoder(KVEventBatch).decode


class Subscriber:
    """Follows one publisher. A batch that it missed is asked for again."""

    def __init__(self, config, topic=""):
        self._context = zmq.Context()
        self.live = self._context.socket(zmq.SUB)
        self.live.setsockopt_string(zmq.SUBSCRIBE, topic)
        self.live.connect(config.endpoint.replace("*", "127.0.0.1"))
        self.replay = self._context.socket(zmq.DEALER)
        self.replay.connect(config.replay_endpoint.replace("*", "127.0.0.1"))
        for each in (self.live, self.replay):
            each.setsockopt(zmq.RCVTIMEO, int(1000 * LONG_S))

    def batches_since(self, first):
        """All batches from a sequence number on, by replay."""
        self.replay.send_multipart((b"", first.to_bytes(8, "big")))
        found = []
        while True:
            _, topic, sequence, batch = self.replay.recv_multipart()
            if sequence == b"\xff" * 8:
                assert (topic, batch) == (b"", b"")
                return found
            found.append((topic.decode(), int.from_bytes(sequence, "big"), decode(batch)))

    def next_live(self):
        topic, sequence, batch = self.live.recv_multipart()
        return topic.decode(), int.from_bytes(sequence, "big"), decode(batch)

    def close(self):
        self._context.destroy(linger=0)


@pytest.fixture
def num_kept():
    return 10_000


@pytest.fixture(name="config")
def config_with_paths(tmp_path, num_kept):
    return KVEventsConfig(
        publisher="zmq",
        endpoint=f"ipc://{tmp_path}/live",
        replay_endpoint=f"ipc://{tmp_path}/replay",
        buffer_steps=num_kept,
        topic="kv@here@tiny",
        rank=2,
    )


@pytest.fixture(name="cache")
def small_cache():
    return PrefixCache(num_pages=4, page_size=4)


@pytest.fixture(name="publisher")
def running_publisher(config, cache):
    publisher = KVEventPublisher(config, cache.record_events())
    yield publisher
    publisher.close()


@pytest.fixture(name="subscriber")
def following(config, publisher):
    subscriber = Subscriber(config, topic="kv@")
    yield subscriber
    subscriber.close()


def run(cache, tokens, salt=b""):
    lease = cache.open(tokens, salt=salt)
    cache.extend(lease, len(tokens))
    cache.close(lease, tokens)


def test_a_subscriber_gets_stored_and_removed_blocks(cache, publisher, subscriber):
    publisher.publish()
    assert subscriber.batches_since(0)[0][2].events == [AllBlocksCleared()]
    run(cache, list(range(8)), salt=b"tenant")
    publisher.publish()
    publisher.publish()  # nothing happened: no batch
    run(
        cache, list(range(50, 58)), salt=prefix_salt(SQL, "")
    )  # 3 pages in all: one of the first text is evicted
    publisher.publish()
    (_, _, first), (topic, number, second) = subscriber.batches_since(1)
    (stored,) = first.events
    assert stored.token_ids == list(range(8))
    assert (stored.parent_block_hash, stored.block_size) == (None, 4)
    ((digest,), rest) = stored.extra_keys
    assert (len(digest), rest, stored.lora_name) == (32, None, None)  # a hash, never the salt
    assert (topic, number, second.data_parallel_rank) == ("kv@here@tiny", 2, 2)
    removed, added = second.events
    assert removed == BlockRemoved(stored.block_hashes[1:], "GPU")
    assert (added.token_ids, added.lora_name) == (list(range(50, 58)), "sql")


def test_live_batches_have_the_form_of_replayed_ones(cache, publisher, subscriber):
    def arrives():
        """A subscription takes a moment, and misses what is published before."""
        run(cache, [1] * 4)
        cache.flush()
        publisher.publish()
        return subscriber.live.poll(10)

    wait_for(arrives)
    live = subscriber.next_live()
    assert isinstance(live[2].events[-2], BlockStored)
    assert subscriber.batches_since(live[1])[0] == live


@pytest.mark.parametrize("num_kept", [3])
def test_replay_reaches_back_buffer_steps_and_bad_requests_are_ignored(
    cache, publisher, subscriber
):
    for number in range(5):
        run(cache, [number] * 4)
        publisher.publish()
    for bad in ((b"",), (b"", b"\0"), (b"", b"\0" * 8, b"more"), (b"x" * 1000,)):
        subscriber.replay.send_multipart(bad)
    assert [number for _, number, _ in subscriber.batches_since(0)] == [2, 3, 4]
    assert subscriber.batches_since(99) == []


def test_an_endpoint_in_use_is_refused_by_name(cache):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://*:{taken.getsockname()[1]}"
        config = KVEventsConfig(publisher="zmq", endpoint=endpoint)
        with pytest.raises(ConfigError, match="--kv-events-config"):
            KVEventPublisher(config, cache.record_events())


@pytest.mark.parametrize(
    ("text", "is_on"),
    [
        ("", False),
        ("{}", False),
        ('{"enable_kv_cache_events": true}', True),
        ('{"enable_kv_cache_events": false, "publisher": "zmq"}', False),
        ('{"enable_kv_cache_events": true, "publisher": "null"}', False),
        ('{"publisher": "zmq", "topic": "kv-events", "replay_endpoint": null}', True),  # SGLang's
    ],
)
def test_the_json_of_both_engines_is_taken(text, is_on):
    assert parse_kv_events(text).is_on == is_on


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("[]", "JSON object"),
        ("{", "JSON object"),
        ('{"end": 1}', "no field end"),
        ('{"publisher": "kafka"}', "publisher"),
        ('{"hwm": -1}', "hwm"),
        ('{"endpoint": "http://x"}', "endpoint"),
        ('{"endpoint": "tcp://*"}', "endpoint"),
        ('{"replay_endpoint": 5}', "replay_endpoint"),
        ('{"enable_kv_cache_events": 1}', "enable_kv_cache_events"),
    ],
)
def test_a_config_that_cannot_work_is_refused_by_name(text, name):
    with pytest.raises(ConfigError, match=name):
        parse_kv_events(text)


def test_every_rank_has_ports_of_its_own():
    config = KVEventsConfig(publisher="zmq", replay_endpoint="tcp://*:6000").at_rank(3)
    assert (config.endpoint, config.replay_endpoint, config.rank) == (
        "tcp://*:5560",
        "tcp://*:6003",
        3,
    )


@pytest.mark.slow
def test_a_server_tells_which_prefixes_it_has(tmp_path):
    tiny_llama(512).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    paths = {name: f"ipc://{tmp_path}/{name}" for name in ("endpoint", "replay_endpoint")}
    flags = ("--draft", "none", "--block-size", "16", "--kv-events-config")
    server = ServerProcess(
        tmp_path, tmp_path / "log", *flags, json.dumps({"enable_kv_cache_events": True, **paths})
    )
    subscriber = Subscriber(KVEventsConfig(**paths))
    try:
        body = {"prompt": [5] * 40, "max_tokens": 1, "temperature": 0}
        assert server.post("/v1/completions", body).status_code == 200
        events = [each for _, _, batch in subscriber.batches_since(0) for each in batch.events]
        (stored,) = [each for each in events if isinstance(each, BlockStored)]
        assert stored.token_ids == [5] * 32
        assert server.post("/reset_prefix_cache", {}).status_code == 200
        wait_for(lambda: subscriber.batches_since(0)[-1][2].events == [AllBlocksCleared()])
        again = server.post("/v1/completions", body).json()
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    finally:
        subscriber.close()
        server.process.kill()
        server.process.wait()
