"""Reads that do not end when they are given up: their pages are used again only afterwards."""

import random
import threading

import pytest
from support.engines import Shape, engine_of, make_submission, run_all
from support.faults import break_steps
from support.matrix import sampling_of
from support.processes import wait_until
from support.role_traces import submissions
from support.roles import pair_of

from outrider.disaggregation.tcp_pages import TcpSink
from outrider.runtime.draft_kinds import NoDraft

SMALL = Shape(kv_tokens=80, max_context=60)  # 20 pages, of which the prompt takes 7
NUM_PAGES = 7


class LateRead:
    """A read that a stopped peer may still finish: nothing is known of it until it is over."""

    num_bytes = 0

    def __init__(self, end):
        self._end = end

    def is_done(self):
        return False

    def is_over(self):
        return self._end.is_set()


class LateSink(TcpSink):
    """Owns the pages of its only read, and writes them whenever the test wants."""

    def __init__(self, pages):
        super().__init__(pages)
        self.end, self.began, self.ours = threading.Event(), threading.Event(), ()

    def read(self, channel, welcome, key, theirs, ours):
        super().read(channel, welcome, key, theirs, ours)
        self.ours = ours
        self.began.set()
        return LateRead(self.end)

    def land(self, seed):
        """What the peer sends late, as bytes of no KV."""
        rng = random.Random(seed)
        for part, tensor in enumerate(self._pages.parts):
            for page in self.ours:
                values = bytearray(rng.randbytes(tensor.shape[1]))
                self._pages.write(part, [page], tensor.new_tensor(list(values))[None])


def others(num):
    """Requests that need all pages that are left, each with a text of its own."""
    rng = random.Random(5)
    prompts = [[rng.randint(3, 60) for _ in range(40)] for _ in range(num)]
    return [
        make_submission(f"o{place}", each, sampling_of("greedy", 0), max_tokens=10)
        for place, each in enumerate(prompts)
    ]


@pytest.fixture(name="lost", params=["abort", "deadline"])
def pair_with_a_lost_read(models, request):
    """Two engines, the sink, and the request whose read was given up and goes on."""
    (one,), sinks = submissions()[2:], []

    def make_sink(pages):
        sinks.append(LateSink(pages))
        return sinks[0]

    with pair_of(models.target, NoDraft(), decode_shape=SMALL, make_sink=make_sink) as pair:
        engine = pair.decode.engine
        pair.offer(one, "room")
        engine.add(pair.fetched(one, "room"))
        wait_until(lambda: engine.refuse() or sinks[0].began.is_set())
        if request.param == "abort":
            engine.abort("r2")
        else:
            engine._pending.role._deadline_s = 0.0
            alone = run_all(engine_of(models.target, Shape()), [one])
            assert run_all(engine, [])["r2"].tokens == alone["r2"].tokens
        wait_until(lambda: engine.tend() or not engine._pending.role._arrivals)
        yield pair, sinks[0], one
        sinks[0].end.set()


def run_while_it_lands(engine, sink, submission):
    """The tokens of a request during whose steps the lost read writes."""
    engine.add(submission)
    tokens = []
    while engine.has_work:
        sink.land(submission.request_id)
        tokens += [token for update in engine.step() for token in update.tokens]
    return tokens


def test_no_request_gets_pages_that_may_still_be_written(models, lost):
    pair, sink, _ = lost
    engine, asked = pair.decode.engine, others(4)
    right = run_all(engine_of(models.target, Shape()), asked)
    for each in asked:
        assert run_while_it_lands(engine, sink, each) == right[each.request_id].tokens
        held = engine.stats
        assert (held.transfers.arriving, held.transfers.pages) == (1, NUM_PAGES)
        assert held.pages.free == held.pages.total - NUM_PAGES


def test_a_failed_step_frees_no_page_that_may_still_be_written(models, lost):
    """It drops all cached pages: none can be trusted. What a read may write is not free by that."""
    pair, sink, _ = lost
    engine, asked = pair.decode.engine, others(3)
    right = run_all(engine_of(models.target, Shape()), asked)
    break_steps(engine, at_submit=[1])
    run_all(engine, [make_submission("victim", [5, 6, 7], sampling_of("greedy", 0))])
    assert engine.num_failed_steps == 1
    for each in asked:
        assert run_while_it_lands(engine, sink, each) == right[each.request_id].tokens
    sink.end.set()
    pair.prefill.engine._pending.role.drop()
    pair.assert_no_leak()


def test_pages_return_once_the_read_is_over(models, lost):
    pair, sink, one = lost
    engine = pair.decode.engine
    sink.land("last")
    sink.end.set()
    again = make_submission("again", one.prompt, one.sampling, max_tokens=8)
    engine.flush()  # after the deadline the same text was computed here
    found = run_all(engine, [again])["again"]
    assert found.last.progress.cached == 0, "the pages of the lost read were published"
    assert found.tokens == run_all(engine_of(models.target, Shape()), [again])["again"].tokens
    assert engine.stats.transfers.arriving == 0
    pair.prefill.engine._pending.role.drop()  # its lease would lapse later
    pair.assert_no_leak()
