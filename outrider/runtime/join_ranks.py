"""How a process becomes a rank: it finds the others by a store at rank 0."""

import socket
import time
from collections.abc import Callable
from datetime import timedelta

import torch
from torch._C._distributed_c10d import TCPStore

from outrider.config.engine_config import ParallelConfig
from outrider.distributed.gloo_ranks import MAX_LOAD_S, GlooRanks
from outrider.distributed.rank_group import ExpertRanks, OneRank, ProcessRanks, RankGroup
from outrider.errors import ConfigError
from outrider.runtime.rank_messages import RankJob

# For a collective among ranks that show life. A compiler may be busy on one of them.
_MOST_COLLECTIVE_S = 60.0
_LOOK_S = 0.05  # between two looks for ranks that have not come
_NUM_THREADS = torch.get_num_threads()  # before a group took its share


def open_store(host: str) -> TCPStore:
    """The store of a new group, at a free port of rank 0, reached by this address alone."""
    listener = socket.create_server((host, 0))  # torch would listen on all addresses
    port = listener.getsockname()[1]
    return TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def await_ranks(store: TCPStore, num: int, loss: Callable[[], str]) -> None:
    """Return once all ranks have come; raises if one is lost before. Ctrl-C is heard here.

    The constructor of a group would wait inside torch, whatever became of the ranks.
    """
    missing = [_key(rank) for rank in range(1, num)]
    while not store.check(missing):
        if reason := loss():
            raise ConfigError(reason)
        time.sleep(_LOOK_S)


def _key(rank: int) -> str:
    return f"rank {rank} is here"


def join_ranks(job: RankJob, store: TCPStore | None = None) -> ProcessRanks:
    """The group, once all its ranks have come."""
    if store is None:
        wait = timedelta(seconds=MAX_LOAD_S)
        meeting = job.meeting
        store = TCPStore(meeting.host, meeting.port, is_master=False, timeout=wait)
        store.set(_key(job.rank), "")
    parallel = job.config.parallel
    size = parallel.tensor * parallel.data
    if job.has_own_gpu:
        from outrider.distributed.nccl_ranks import NcclRanks  # not in torch's build for CPUs

        device = torch.device(job.config.device)
        torch.cuda.set_device(device)
        return NcclRanks(store, rank=job.rank, size=size, device=device, timeout_s=MAX_LOAD_S)
    host = job.meeting.own_host
    timeout_s = max(parallel.timeout_s, _MOST_COLLECTIVE_S)
    return GlooRanks(store, rank=job.rank, size=size, host=host, timeout_s=timeout_s)


def model_ranks(ranks: ProcessRanks, parallel: ParallelConfig) -> RankGroup:
    """How the model is shared: every layer by all ranks, or only the experts."""
    if parallel.data == 1:
        return ranks
    experts = ExpertRanks(group=ranks, has_own_tokens=True) if parallel.is_expert_parallel else None
    return OneRank(experts, beside=ranks)


def use_share_of_cores(parallel: ParallelConfig) -> None:
    """Ranks on one CPU share its cores: more threads than cores would wait for each other."""
    size = parallel.tensor * parallel.data // parallel.nodes.num
    torch.set_num_threads(max(_NUM_THREADS // size, 1))
