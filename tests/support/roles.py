"""A prefill engine and a decode engine in one process, which talk over a real socket."""

import socket
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace

from outrider.disaggregation.offer_board import OfferBoard
from outrider.disaggregation.page_bytes import PageBytes
from outrider.disaggregation.page_fetches import PageFetches
from outrider.disaggregation.page_transport import PageSink, PageSource
from outrider.disaggregation.prefill_channels import PrefillChannels
from outrider.disaggregation.prefill_server import PrefillServer
from outrider.disaggregation.tcp_pages import TcpSink, TcpSource
from outrider.engine.decode_role import DecodeRole
from outrider.engine.engine import Engine
from outrider.engine.prefill_role import PrefillRole
from outrider.runtime.build_runner import assemble_runner
from outrider.runtime.draft_kinds import DraftKind
from outrider.runtime.runner import Runner
from outrider.step.device_stream import DeviceStream
from outrider.structured.grammar_cache import NO_GRAMMARS, Grammars
from outrider.wire.submission import Submission
from outrider.wire.transfer_order import TransferOrder
from support.engines import CollectedOutput, Shape, buckets_of, run_all, settings_of

KEY = b"a secret of the test"
USUAL = Shape()


@dataclass(frozen=True)
class Half:
    """One of the two engines."""

    engine: Engine
    runner: Runner
    pages: PageBytes


@dataclass(frozen=True)
class Pair:
    """Both engines, and where the first listens."""

    prefill: Half
    decode: Half
    board: OfferBoard
    server: PrefillServer

    @property
    def port(self) -> int:
        return self.server.port

    def offer(self, submission: Submission, room: str) -> CollectedOutput:
        """Let the prefill engine compute a prompt."""
        order = TransferOrder(kind="offer", room=room)
        outputs = run_all(self.prefill.engine, [replace(submission, transfer=order)])
        return outputs[submission.request_id]

    def fetched(self, submission: Submission, room: str) -> Submission:
        order = TransferOrder(kind="fetch", room=room, host="127.0.0.1", port=self.port)
        return replace(submission, transfer=order)

    def answer(self, submissions: list[Submission]) -> dict[str, CollectedOutput]:
        """All requests, prefilled by one engine and decoded by the other."""
        for each in submissions:
            self.offer(each, each.request_id)
        return run_all(
            self.decode.engine, [self.fetched(each, each.request_id) for each in submissions]
        )

    def assert_no_leak(self) -> None:
        for half in (self.prefill, self.decode):
            half.engine.tend()
            stats = half.engine.stats
            assert stats.pages.free == stats.pages.total, stats
            assert stats.rows.free == stats.rows.total


def make_half(
    model,
    shape: Shape,
    draft: DraftKind,
    grammars: Grammars = NO_GRAMMARS,
    *,
    gets_pages: bool = False,
) -> Half:
    runner, facts = assemble_runner(
        model,
        replace(settings_of(shape), gets_pages=gets_pages),
        draft=draft,
        kv_tokens=shape.kv_tokens,
        buckets=buckets_of(shape),
        grammars=grammars,
    )
    return Half(Engine(runner, facts, runner.grammars), runner, PageBytes(runner.pages))


@contextmanager
def pair_of(
    model,
    draft: DraftKind,
    *,
    shape: Shape = USUAL,
    decode_shape: Shape | None = None,
    lease_s: float = 30.0,
    stall_s: float = 5.0,
    deadline_s: float = 300.0,
    key: bytes = KEY,
    stream: DeviceStream | None = None,
    grammars: Grammars = NO_GRAMMARS,
    facts: tuple[dict[str, str], dict[str, str]] = ({}, {}),
    make_source: Callable[[PageBytes, OfferBoard], PageSource] = TcpSource,
    make_sink: Callable[[PageBytes], PageSink] = TcpSink,
):
    """The two engines; the listener is closed in the end."""
    prefill = make_half(model, shape, draft, grammars)
    decode = make_half(model, decode_shape or shape, draft, grammars, gets_pages=True)
    ships_rows = prefill.engine.facts.snapshots.row_bytes > 0
    board = OfferBoard(lease_s, prefill.runner.row_images)
    server = PrefillServer(
        socket.create_server(("127.0.0.1", 0)),
        KEY,
        board=board,
        source=make_source(prefill.pages, board),
        facts=facts[0],
    )
    server.start()
    prefill.engine.use_role(lambda cache: PrefillRole(cache, board, ships_rows=ships_rows))
    sink, rows = make_sink(decode.pages), decode.runner.row_images
    channels = PrefillChannels(facts[1], key, stall_s=stall_s)
    fetches = PageFetches(sink, rows, channels, stream=stream or decode.runner.stream)
    decode.engine.use_role(
        lambda cache: DecodeRole(cache, fetches, ships_rows=ships_rows, deadline_s=deadline_s)
    )
    try:
        yield Pair(prefill, decode, board, server)
    finally:
        server.close()
