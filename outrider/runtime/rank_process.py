"""The process of a rank other than 0: it runs the batches that rank 0 runs, in the same order."""

import contextlib
import logging
import pickle
import sys
import threading
import time
from collections import deque
from dataclasses import replace
from multiprocessing.connection import Connection

import torch

from outrider.config.owner_life import kill_with_owner
from outrider.distributed.rank_group import ProcessRanks
from outrider.errors import OutriderError
from outrider.runtime.join_ranks import join_ranks, model_ranks, use_share_of_cores
from outrider.runtime.model_home import ModelHome
from outrider.runtime.rank_messages import (
    FromRank,
    RankAlive,
    RankFailed,
    RankJob,
    RankReady,
    RunStep,
)
from outrider.runtime.runner import InFlightStep, Runner

ALIVE_EVERY_S = 0.5
_MOST_IN_FLIGHT = 2  # steps whose buffers a device may still write

_log = logging.getLogger(__name__)


class RankConnection:
    """Owns the connection to rank 0; several threads send over it."""

    def __init__(self, connection: "Connection[FromRank, object]") -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, message: FromRank) -> None:
        with self._lock:
            self._connection.send(message)

    def receive(self) -> object:
        return self._connection.recv()

    def show_life(self) -> None:
        """Tell rank 0 every half second that this process runs; returns when rank 0 has ended."""
        with contextlib.suppress(OSError):
            while True:
                self.send(RankAlive())
                time.sleep(ALIVE_EVERY_S)


def run_rank(job: RankJob, to_first: RankConnection) -> int:
    """Work until rank 0 ends; returns the exit code."""
    threading.Thread(target=to_first.show_life, daemon=True).start()
    try:
        ranks = join_ranks(job)
        own = model_ranks(ranks, job.config.parallel)
        runner, facts = ModelHome(job.folder, job.config, ranks=own).build()
        to_first.send(RankReady(replace(facts.memory.ranks[0], rank=job.rank)))
        ranks.expect_prompt_ranks()
        _follow(runner, ranks, to_first)
    except (EOFError, ConnectionError):
        return 0  # rank 0 has ended
    except OutriderError as error:
        return _fail(to_first, str(error))
    except Exception as error:
        _log.exception("rank %d failed", job.rank)
        return _fail(to_first, repr(error))
    return 0


def _fail(to_first: RankConnection, reason: str) -> int:
    with contextlib.suppress(OSError):
        to_first.send(RankFailed(reason))
    return 1


def _follow(runner: Runner, ranks: ProcessRanks, to_first: RankConnection) -> None:
    in_flight: deque[InFlightStep] = deque(maxlen=_MOST_IN_FLIGHT)
    while True:
        message = to_first.receive()
        assert isinstance(message, RunStep), message
        in_flight.append(runner.submit(message.batch, message.agreed))
        ranks.end_step()
        if message.agreed is not None:
            to_first.send(in_flight.pop().wait())


def main() -> int:
    fd = int(sys.argv[1])
    try:
        job = pickle.load(sys.stdin.buffer)
    except EOFError:
        return 0  # rank 0 ended, or failed, before it had a job for this rank
    kill_with_owner(sys.stdin.fileno())
    use_share_of_cores(job.config.parallel)
    if job.config.device.startswith("cuda:"):  # or every rank would open the first GPU, too
        torch.cuda.set_device(job.config.device)
    return run_rank(job, RankConnection(Connection(fd)))


if __name__ == "__main__":
    sys.exit(main())
