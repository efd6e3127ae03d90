"""How the other ranks of a group come to be: processes of this machine and of others, or by Ray."""

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch

from outrider.config.early_ranks import EarlyRanks
from outrider.config.engine_config import EngineConfig
from outrider.config.node_address import parse_address
from outrider.runtime.gather_nodes import NodeGathering
from outrider.runtime.node_facts import facts_of
from outrider.runtime.rank_jobs import local_jobs, ranks_of
from outrider.runtime.rank_messages import MeetingPoint, RankJob
from outrider.runtime.rank_processes import RankLink, RankProcess

_HERE = "127.0.0.1"


class RankLauncher(Protocol):
    """Starts the other ranks. This process is rank 0."""

    @property
    def host(self) -> str:
        """The address of this machine that all ranks reach."""
        ...

    def jobs(self, meeting: MeetingPoint) -> list[RankJob]:
        """The job of rank 0, and those of the ranks that are started here."""
        ...

    def start(self, others: Sequence[RankJob], store_port: int) -> list[RankLink]:
        """All other ranks; none is left if one cannot be started."""
        ...


class ProcessLauncher:
    """Ranks that are child processes, or those of other machines that were started by hand."""

    def __init__(
        self,
        folder: Path,
        config: EngineConfig,
        *,
        early: EarlyRanks,
        listen: Callable[[], socket.socket],  # for other machines
    ) -> None:
        self._folder = folder
        self._config = config
        self._early = early
        self._listen = listen

    @property
    def host(self) -> str:
        nodes = self._config.parallel.nodes
        return parse_address(nodes.address)[0] if nodes.num > 1 else _HERE

    def jobs(self, meeting: MeetingPoint) -> list[RankJob]:
        return local_jobs(self._folder, self._config, meeting)

    def start(self, others: Sequence[RankJob], store_port: int) -> list[RankLink]:
        """Those of other machines, once they have come, and those of this one."""
        parallel, nodes = self._config.parallel, self._config.parallel.nodes
        remote: list[RankLink] = []
        if nodes.num > 1:
            machines = {r: node for node in range(1, nodes.num) for r in ranks_of(node, parallel)}
            facts = facts_of(self._folder, self._config, num_cuda=torch.cuda.device_count())
            with self._listen() as listener:
                remote += NodeGathering(listener, nodes, facts).gather(machines, store_port)
        return [*(RankProcess(job, self._early.take()) for job in others), *remote]
