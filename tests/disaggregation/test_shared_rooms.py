"""Clients choose rooms, and pages are used again: a transfer touches its own only."""

import socket
import threading
from dataclasses import replace

import pytest
from support.engines import engine_of, make_submission, run_all
from support.matrix import sampling_of
from support.recurrent_module import save_with_module
from support.role_traces import submissions, traces
from support.roles import pair_of
from support.row_harness import CPU
from support.row_matrix import PLAIN, shape_of

from outrider.config.engine_config import DisaggregationConfig
from outrider.disaggregation.tcp_pages import TcpSink
from outrider.errors import RequestError
from outrider.frontend.call_cost import PromptRequest
from outrider.frontend.prompts import TextPrompt, TokenPrompt, embedded_prompt
from outrider.frontend.sampling_params import SamplingParams
from outrider.models.target import load_target
from outrider.runtime.draft_kinds import NoDraft
from outrider.server.protocol.completions_protocol import CompletionRequest
from outrider.step.device_stream import HostEvent, HostStream
from outrider.wire.adapter import Adapter
from outrider.wire.embedded_span import EmbeddedSpan
from outrider.wire.kv_transfer import digest_of
from outrider.wire.transfer_order import NO_TRANSFER

LONG_S = 60.0


class LateStream(HostStream):
    """A stream with a step in flight: its events pass when the test says so."""

    def __init__(self):
        self.order = []
        self.end = threading.Event()

    def record_event(self):
        self.order.append("pages taken")
        return LateEvent(self)


class LateEvent(HostEvent):
    def __init__(self, stream):
        super().__init__()
        self._stream = stream

    def wait(self):
        self._stream.order.append("fetch waits")
        assert self._stream.end.wait(LONG_S)
        self._stream.order.append("steps are done")


def test_pages_are_written_after_the_steps_that_may_write_them(models):
    """With depth 1, a request that ends frees pages that the next step still writes."""
    stream = LateStream()

    class NotingSink(TcpSink):
        def read(self, *args):
            stream.order.append("pages are written")
            return super().read(*args)

    (one,) = submissions()[2:]
    with pair_of(models.target, NoDraft(), stream=stream, make_sink=NotingSink) as pair:
        pair.offer(one, "room")
        pair.decode.engine.add(pair.fetched(one, "room"))
        pair.decode.engine.step()
        stream.end.set()
        while pair.decode.engine.has_work:
            pair.decode.engine.step()
        assert pair.decode.engine.stats.transfers.total_done == 1
        pair.assert_no_leak()
    assert stream.order == ["pages taken", "fetch waits", "steps are done", "pages are written"]


def test_a_room_brings_kv_to_its_own_prompt_only(models):
    (one,) = submissions()[2:]
    other = make_submission("other", [*one.prompt[:-1], 3], sampling_of("greedy", 0), max_tokens=8)
    right = run_all(engine_of(models.target, shape_of(PLAIN, chunk=64)), [one, other])
    with pair_of(models.target, NoDraft()) as pair:
        pair.offer(one, "room")
        found = run_all(pair.decode.engine, [pair.fetched(each, "room") for each in (other, one)])
        assert {name: each.tokens for name, each in found.items()} == {
            name: each.tokens for name, each in right.items()
        }
        assert found["r2"].last.progress.cached == 28
        counts = pair.decode.engine.stats.transfers
        assert (counts.total_done, counts.total_failed) == (1, 1)
        pair.assert_no_leak()


@pytest.fixture(name="with_rows", scope="module")
def model_with_row_state(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    save_with_module(folder, "qwen3-next")
    return load_target(folder, dtype="float32", device=CPU)


def arrive(pair, submission, room):
    """The KV of a request is there, or cannot come; the request has no row yet."""
    engine = pair.decode.engine
    engine.add(pair.fetched(submission, room))
    (arrival,) = engine._pending.role._arrivals.values()
    arrival.room.offered.result(LONG_S)
    assert not engine.refuse()  # the read begins
    arrival.awaited.result(LONG_S)


def test_a_failed_transfer_leaves_the_row_state_of_another(with_rows):
    shape, greedy = shape_of(PLAIN, chunk=64), sampling_of("greedy", 0)
    asked = [
        make_submission(name, [5, 6, 7, 8, 9, last], greedy) for name, last in (("a", 4), ("b", 5))
    ]
    right = traces(engine_of(with_rows, shape), asked)
    with pair_of(with_rows, PLAIN, shape=shape) as pair:
        pair.offer(asked[0], "room")
        arrive(pair, asked[0], "room")
        assert not pair.decode.engine.refuse()  # it is queued now
        arrive(pair, asked[1], "room")
        found = run_all(pair.decode.engine, [])
        assert pair.decode.engine.num_failed_steps == 0
        assert [found[each].tokens for each in "ab"] == [right[each][0] for each in "ab"]
        assert found["a"].last.progress.cached == 5
        pair.assert_no_leak()


def test_a_reset_forgets_row_state_that_was_on_its_way(with_rows):
    one = make_submission("a", [5, 6, 7, 8, 9, 4], sampling_of("greedy", 0))
    with pair_of(with_rows, PLAIN, shape=shape_of(PLAIN, chunk=64)) as pair:
        pair.offer(one, "room")
        arrive(pair, one, "room")
        assert len(pair.decode.runner.row_images._kept) == 1
        pair.decode.engine._pending.role.drop()
        run_all(pair.decode.engine, [])
        assert not pair.decode.runner.row_images._kept
        pair.assert_no_leak()


def test_prompts_that_share_a_room_are_refused():
    role = DisaggregationConfig(mode="decode")
    for rooms in (7, [7, 7]):
        body = CompletionRequest.model_validate(
            {"prompt": ["a", "b"], "bootstrap_host": "127.0.0.1", "bootstrap_room": rooms}
        )
        with pytest.raises(RequestError, match="a room of its own per prompt"):
            body._orders(role, 2)


def test_prompts_that_tokens_do_not_name_are_not_shared():
    embedded = embedded_prompt(EmbeddedSpan(first=0, width=1, values=b"aaaa"))
    pictured = replace(TextPrompt("<image>"), images=("an image",))
    params = SamplingParams(n=2, max_tokens=9)
    asked = [PromptRequest(prompt=each, params=params) for each in (embedded, pictured)]
    body = CompletionRequest.model_validate(
        {"prompt": ["a", "b"], "bootstrap_host": "127.0.0.1", "bootstrap_room": [1, 2]}
    )
    assert body.split(DisaggregationConfig(mode="decode"), asked) == asked
    for each in body.split(DisaggregationConfig(mode="prefill"), asked):
        assert (each.prompt, each.transfer) == (TokenPrompt((0,)), NO_TRANSFER)
        assert (each.params.n, each.params.max_tokens) == (1, 1)


def test_a_prefill_server_tells_the_host_that_it_was_given():
    body = CompletionRequest.model_validate(
        {"prompt": "a", "kv_transfer_params": {"do_remote_decode": True}}
    )
    for listens, told, right in (
        ("0.0.0.0", "", socket.gethostname()),
        ("10.0.0.7", "", "10.0.0.7"),
        ("0.0.0.0", "prefill.example", "prefill.example"),
    ):
        role = DisaggregationConfig(mode="prefill", host=listens, advertised_host=told)
        (order,) = body._orders(role, 1)
        assert (order.kind, order.host) == ("offer", right)


def test_the_name_of_a_prompts_kv_has_its_salt_and_its_adapter():
    (plain,) = submissions()[2:]
    named = Adapter(path="folder", version="1")
    others = [
        replace(plain, cache_salt="tenant"),
        replace(plain, adapter=named),
        replace(plain, adapter=replace(named, version="2")),
        replace(plain, adapter=named, cache_salt="tenant"),
        replace(plain, prompt=plain.prompt[:-1]),
    ]
    assert len({digest_of(each) for each in (plain, *others)}) == 6
