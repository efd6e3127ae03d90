"""A machine other than 0: it joins, starts its ranks, and ends them and itself with machine 0."""

import logging
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import torch

from outrider.config.early_ranks import start_rank_process
from outrider.config.engine_config import EngineConfig
from outrider.config.node_address import parse_address, read_key
from outrider.config.parallel_checks import check_parallel
from outrider.errors import ConfigError
from outrider.runtime.node_connection import NodeConnection, connect, connect_soon
from outrider.runtime.node_facts import facts_of
from outrider.runtime.node_messages import NodeHello, NodeJob, NodeRefused, RankHello
from outrider.runtime.rank_jobs import local_jobs
from outrider.runtime.rank_messages import MeetingPoint
from outrider.runtime.rank_processes import send_job

_CONNECT_S = 60.0  # for a rank; machine 0 waits for it

_log = logging.getLogger(__name__)


def follow_node(folder: Path, config: EngineConfig) -> None:
    """Run the ranks of this machine until machine 0 ends.

    When machine 0 replaces its worker after a loss, the ranks of this machine are replaced, too.
    """
    check_parallel(config.parallel)
    facts = facts_of(folder, config, num_cuda=torch.cuda.device_count())
    has_joined = False
    while (link := _connect(config, has_joined=has_joined)) is not None:
        with closing(link):
            job = _join(link, config.parallel.nodes.rank, facts)
            if job is not None:
                has_joined = True
                with _ranks(link, job, folder, config):
                    _wait_for_end(link)
        _log.warning("the connection to machine 0 ended, and the ranks of this machine with it")
    _log.warning("machine 0 has ended")


def _connect(config: EngineConfig, *, has_joined: bool) -> NodeConnection | None:
    """A connection to machine 0; None if it had come and has ended."""
    nodes = config.parallel.nodes
    address, end_s = parse_address(nodes.address), time.monotonic() + nodes.timeout_s
    try:
        return (connect if has_joined else connect_soon)(address, read_key(), end_s)
    except ConnectionError:
        if has_joined:
            return None
        reason: Exception = ConnectionError("nothing listens there")
    except OSError as error:
        reason = error
    raise ConfigError(
        f"machine 0 did not answer at {nodes.address} within {nodes.timeout_s:g} s ({reason}); "
        "start it with --node-rank 0 and the same --dist-init-addr, or raise --dist-timeout"
    )


def _join(link: NodeConnection, node: int, facts: Mapping[str, str]) -> NodeJob | None:
    """What machine 0 wants of this machine, or None if it ended; raises if it refuses."""
    try:
        link.connection.send(NodeHello(node, facts))
        answer = link.connection.recv()
    except (EOFError, OSError):
        return None
    if isinstance(answer, NodeRefused):
        raise ConfigError(answer.reason)
    assert isinstance(answer, NodeJob), answer
    _log.info("machine %d takes part", node)
    return answer


@contextmanager
def _ranks(
    link: NodeConnection, node_job: NodeJob, folder: Path, config: EngineConfig
) -> Iterator[None]:
    """The ranks of this machine run inside."""
    host, port = parse_address(config.parallel.nodes.address)
    meeting = MeetingPoint(host=host, port=node_job.store_port, own_host=link.own_host)
    started: list[subprocess.Popen[bytes]] = []
    try:
        for job in local_jobs(folder, config, meeting):
            own = connect((host, port), read_key(), time.monotonic() + _CONNECT_S)
            own.connection.send(RankHello(job.rank))
            started.append(start_rank_process(own.connection.fileno()))
            send_job(started[-1], job)
            own.forget()
        yield
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


def _wait_for_end(link: NodeConnection) -> None:
    try:
        answer = link.connection.recv()
    except (EOFError, OSError):
        return
    if isinstance(answer, NodeRefused):
        raise ConfigError(answer.reason)
