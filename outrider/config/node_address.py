"""Where the machines of one model meet: machine 0 listens, and a secret keeps others out."""

import os
import socket

from outrider.config.engine_config import NodesConfig
from outrider.errors import ConfigError

KEY = "OUTRIDER_RANKS_KEY"
_BACKLOG = 64


def read_key() -> bytes:
    """The secret that machines of one model, or servers with roles, share."""
    key = os.environ.get(KEY, "")
    if not key:
        raise ConfigError(
            f"several machines, and prefill and decode servers, need a secret; set {KEY} to "
            "the same one on each"
        )
    return key.encode()


def parse_address(address: str) -> tuple[str, int]:
    """The host and the port of HOST:PORT, or of [HOST]:PORT."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(f"--dist-init-addr must be HOST:PORT of machine 0, got {address!r}")
    return host.strip("[]"), int(port)


def listen_for_nodes(nodes: NodesConfig) -> socket.socket:
    """The socket by which the other machines come. It must live as long as machine 0 serves."""
    host, port = parse_address(nodes.address)
    read_key()
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"machine 0 cannot listen on {nodes.address} ({error.strerror}); --dist-init-addr must "
            "name an address of this machine and a free port"
        ) from error
    return listener
