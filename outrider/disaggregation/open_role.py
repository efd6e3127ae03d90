"""Gives an engine its role: opens the side channel, and what moves pages."""

import socket
from pathlib import Path

from outrider.config.engine_config import DisaggregationConfig, EngineConfig, TransferBackend
from outrider.config.node_address import read_key
from outrider.config.settings import Settings
from outrider.disaggregation.offer_board import OfferBoard
from outrider.disaggregation.page_bytes import PageBytes
from outrider.disaggregation.page_fetches import PageFetches
from outrider.disaggregation.page_transport import PageSink, PageSource
from outrider.disaggregation.prefill_channels import PrefillChannels
from outrider.disaggregation.prefill_server import PrefillServer
from outrider.disaggregation.tcp_pages import TcpSink, TcpSource
from outrider.disaggregation.transfer_facts import transfer_facts
from outrider.errors import ConfigError
from outrider.runtime.runner import Runner
from outrider.wire.kv_transfer import KVFetches, KVOffers
from outrider.wire.runner_facts import RunnerFacts

_BACKLOG = 128


def open_offers(
    runner: Runner, facts: RunnerFacts, folder: Path, config: EngineConfig, settings: Settings
) -> KVOffers:
    """The rooms of a prefill engine, which decode engines can ask for from now on."""
    own, pages = config.disaggregation, PageBytes(runner.pages)
    board = OfferBoard(own.lease_s, runner.row_images)
    server = PrefillServer(
        _listen(own),
        read_key(),
        board=board,
        source=_open_source(own.backend, pages, board),
        facts=transfer_facts(folder, config, settings, facts, pages=pages, rows=runner.row_images),
    )
    server.start()
    return board


def open_fetches(
    runner: Runner, facts: RunnerFacts, folder: Path, config: EngineConfig, settings: Settings
) -> KVFetches:
    """Transfers of a decode engine."""
    own, pages = config.disaggregation, PageBytes(runner.pages)
    equal = transfer_facts(folder, config, settings, facts, pages=pages, rows=runner.row_images)
    channels = PrefillChannels(equal, read_key(), stall_s=own.stall_s)
    sink = _open_sink(own.backend, pages)
    return PageFetches(sink, runner.row_images, channels, stream=runner.stream)


def _open_source(backend: TransferBackend, pages: PageBytes, board: OfferBoard) -> PageSource:
    if backend == "tcp":
        return TcpSource(pages, board)
    from outrider.disaggregation.nixl_pages import NixlSource  # an extra

    return NixlSource(pages)


def _open_sink(backend: TransferBackend, pages: PageBytes) -> PageSink:
    if backend == "tcp":
        return TcpSink(pages)
    from outrider.disaggregation.nixl_pages import NixlSink  # an extra

    return NixlSink(pages)


def _listen(config: DisaggregationConfig) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM
        )[0]
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"a prefill engine cannot listen on {config.host} port {config.port} "
            f"({error.strerror}); change --disaggregation-bootstrap-port or --host"
        ) from error
    return listener
