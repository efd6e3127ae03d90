"""What each rank of this machine is told, and the device that it gets."""

from dataclasses import replace
from pathlib import Path

import torch

from outrider.config.engine_config import EngineConfig, ParallelConfig
from outrider.errors import ConfigError
from outrider.runtime.rank_messages import MeetingPoint, RankJob

_ANY_GPU = ("auto", "cuda")  # a device that the user left open


def ranks_of(node: int, parallel: ParallelConfig) -> range:
    """The ranks that a machine runs."""
    each = parallel.tensor * parallel.data // parallel.nodes.num
    return range(node * each, (node + 1) * each)


def local_jobs(folder: Path, config: EngineConfig, meeting: MeetingPoint) -> list[RankJob]:
    """The jobs of all ranks of this machine."""
    ranks = ranks_of(config.parallel.nodes.rank, config.parallel)
    has_own_gpu = config.device in _ANY_GPU and torch.cuda.device_count() > 0
    num_sharing = 1 if has_own_gpu else len(ranks)
    config = replace(config, parallel=replace(config.parallel, num_sharing=num_sharing))
    return [
        RankJob(
            folder=folder,
            config=replace(config, device=_device_of(config.device, place, len(ranks))),
            rank=rank,
            has_own_gpu=has_own_gpu,
            meeting=meeting,
        )
        for place, rank in enumerate(ranks)
    ]


def _device_of(device: str, place: int, num_ranks: int) -> str:
    """A GPU for every rank; a device that the user names is shared by all of them."""
    num_cuda = torch.cuda.device_count()
    if device not in _ANY_GPU or not num_cuda:
        return device
    if num_ranks > num_cuda:
        raise ConfigError(
            f"{num_ranks} ranks need {num_ranks} GPUs, and {num_cuda} are visible; lower "
            "--tensor-parallel-size, or share one on purpose with --device cuda:0"
        )
    return f"cuda:{place}"
