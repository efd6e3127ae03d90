"""The workers of a server: one, or several copies of the model with requests of their own."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from outrider.config.engine_config import EngineConfig, ParallelConfig
from outrider.errors import ConfigError
from outrider.wire.runner_facts import RunnerFacts

_ANY_GPU = ("auto", "cuda")  # a device that the user left open
_VISIBLE, _THREADS = "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """What one worker computes, and what its environment has besides that of the server."""

    config: EngineConfig
    environment: Mapping[str, str]


def without_draft_check(plan: WorkerPlan) -> WorkerPlan:
    """The plan of a worker that drafts as an earlier one did."""
    draft = replace(plan.config.draft, check=False)
    return replace(plan, config=replace(plan.config, draft=draft))


def plan_workers(config: EngineConfig, environment: Mapping[str, str]) -> list[WorkerPlan]:
    """A worker for each replica. Ranks that share experts, or span machines, are one worker."""
    parallel = config.parallel
    if not _has_replicas(parallel):
        return [WorkerPlan(config, {})]
    if parallel.nodes.backend == "ray":
        raise ConfigError(
            "--data-parallel-size with --distributed-executor-backend ray is there only with "
            "--enable-expert-parallel; start one server per replica instead"
        )
    _check_memory(config)
    own = replace(config, parallel=replace(parallel, data=1))
    shares = _device_shares(config, environment.get(_VISIBLE))
    if _THREADS not in environment:
        num_threads = max(len(os.sched_getaffinity(0)) // parallel.data, 1)
        shares = [{**share, _THREADS: str(num_threads)} for share in shares]
    return [
        WorkerPlan(replace(own, kv_events=config.kv_events.at_rank(rank)), share)
        for rank, share in enumerate(shares)
    ]


def _has_replicas(parallel: ParallelConfig) -> bool:
    return parallel.data > 1 and not parallel.is_expert_parallel and parallel.nodes.num == 1


def _check_memory(config: EngineConfig) -> None:
    is_shared = config.device.startswith("cuda:")
    if is_shared and config.cache.kv_tokens == "auto":
        raise ConfigError(
            f"{config.parallel.data} replicas share {config.device}, and each would take its free "
            "memory; set --kv-tokens, or use --device cuda for a GPU of its own for each"
        )


def _device_shares(config: EngineConfig, visible: str | None) -> list[dict[str, str]]:
    """The GPUs that each worker sees. Without any, or with a device that was named: nothing."""
    num, each = config.parallel.data, config.parallel.tensor
    devices = [name.strip() for name in visible.split(",")] if visible is not None else None
    if config.device not in _ANY_GPU or devices in ([""], ["-1"]):
        return [{} for _ in range(num)]
    if devices is None:
        devices = [str(index) for index in range(num * each)]
    if len(devices) < num * each:
        raise ConfigError(
            f"{num} replicas of {each} need {num * each} GPUs, and {_VISIBLE} names "
            f"{len(devices)}; lower --data-parallel-size"
        )
    return [
        {_VISIBLE: ",".join(devices[first : first + each])} for first in range(0, num * each, each)
    ]


def check_same_devices(replicas: Sequence[RunnerFacts]) -> None:
    """Refuse replicas on a CPU beside others on GPUs: there are not enough GPUs."""
    kinds = [each.memory.ranks[0].device.partition(":")[0] for each in replicas]
    if len(set(kinds)) > 1:
        raise ConfigError(
            f"{len(kinds)} replicas found {kinds.count('cuda')} GPUs; lower --data-parallel-size "
            f"to {kinds.count('cuda')}"
        )
