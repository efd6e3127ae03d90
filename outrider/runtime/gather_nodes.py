"""Machine 0 waits for the other machines of a model, and for the ranks that they start."""

import contextlib
import logging
import socket
import time
from collections.abc import Mapping

from outrider.config.engine_config import NodesConfig
from outrider.config.node_address import read_key
from outrider.errors import ConfigError
from outrider.runtime.node_connection import NodeConnection, accept
from outrider.runtime.node_facts import difference
from outrider.runtime.node_messages import NodeHello, NodeJob, NodeRefused, RankHello

_log = logging.getLogger(__name__)


class RemoteRank:
    """Owns the connection of a rank on another machine, which ends its ranks with ours."""

    def __init__(self, rank: int, link: NodeConnection, node: NodeConnection) -> None:
        self.rank = rank
        self.connection = link.connection
        self._link = link
        self._node = node

    @property
    def is_stopped(self) -> bool:
        return False  # only its own machine knows

    def kill(self) -> None:
        """Its machine kills it when the connection between the machines ends."""
        self._node.shut()
        self._link.shut()

    def close(self) -> None:
        self._node.close()
        self._link.close()


class NodeGathering:
    """Owns the connections of the machines that have come, until all of their ranks have."""

    def __init__(
        self, listener: socket.socket, nodes: NodesConfig, facts: Mapping[str, str]
    ) -> None:
        self._listener = listener
        self._nodes = nodes
        self._facts = facts
        self._key = read_key()
        self._end_s = time.monotonic() + nodes.timeout_s
        self._came: dict[int, NodeConnection] = {}

    def gather(self, ranks: Mapping[int, int], store_port: int) -> list[RemoteRank]:
        """The ranks of other machines; `ranks` names the machine of each."""
        try:
            while len(self._came) < self._nodes.num - 1:
                self._welcome(self._accept("--node-rank", self._missing_nodes()))
            for node in self._came.values():
                node.connection.send(NodeJob(store_port))
            return self._accept_ranks(ranks)
        except ConfigError as error:
            self._refuse(str(error))
            raise
        except BaseException:
            self._refuse("machine 0 ended while it started")
            raise

    def _missing_nodes(self) -> list[int]:
        return [node for node in range(1, self._nodes.num) if node not in self._came]

    def _accept(self, flag: str, missing: list[int]) -> NodeConnection:
        link = accept(self._listener, self._key, self._end_s)
        if link is None:
            names = ", ".join(map(str, missing))
            raise ConfigError(
                f"{flag} {names} did not come to {self._nodes.address} within "
                f"{self._nodes.timeout_s:g} s; start it there, or raise --dist-timeout"
            )
        return link

    def _welcome(self, link: NodeConnection) -> None:
        """Let a machine take part, or end the start of all with the reason."""
        try:
            hello = link.connection.recv()
        except (EOFError, OSError):
            link.close()
            return
        if not isinstance(hello, NodeHello):  # a rank of a start that has failed
            link.close()
            return
        old = self._came.get(hello.node)
        if old is not None and old.connection.poll(0):  # it has ended and was started again
            self._came.pop(hello.node).close()
        reason = self._objection(hello)
        if reason:
            with contextlib.suppress(OSError):
                link.connection.send(NodeRefused(reason))
            link.close()
            raise ConfigError(reason)
        self._came[hello.node] = link
        _log.info("machine %d of %d has come", hello.node, self._nodes.num)

    def _objection(self, hello: NodeHello) -> str:
        if not 0 < hello.node < self._nodes.num:
            return f"--node-rank {hello.node} does not exist with --nnodes {self._nodes.num}"
        if hello.node in self._came:
            return f"--node-rank {hello.node} came twice; give every machine its own"
        return difference(hello.facts, self._facts, node=hello.node)

    def _accept_ranks(self, ranks: Mapping[int, int]) -> list[RemoteRank]:
        found: dict[int, RemoteRank] = {}
        while len(found) < len(ranks):
            missing = [rank for rank in ranks if rank not in found]
            link = self._accept("rank", missing)
            hello = link.connection.recv()
            assert isinstance(hello, RankHello), "every machine has come"
            found[hello.rank] = RemoteRank(hello.rank, link, self._came[ranks[hello.rank]])
        return [found[rank] for rank in ranks]

    def _refuse(self, reason: str) -> None:
        for node in self._came.values():
            with contextlib.suppress(OSError):
                node.connection.send(NodeRefused(reason))
            node.close()
