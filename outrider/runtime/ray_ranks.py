"""Ranks that Ray places: on any machine of its cluster, one per GPU. Only this module uses Ray.

Ray finds the machines and starts the processes. Steps and tensors take the usual ways: a connection
to rank 0, and NCCL or gloo between all ranks.
"""

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from outrider.config.engine_config import EngineConfig
from outrider.errors import ConfigError
from outrider.runtime.join_ranks import use_share_of_cores
from outrider.runtime.node_connection import NodeConnection, accept, connect_soon
from outrider.runtime.node_messages import RankHello
from outrider.runtime.rank_messages import MeetingPoint, RankJob
from outrider.runtime.rank_process import RankConnection, run_rank
from outrider.runtime.rank_processes import RankLink

_ANY_GPU = ("auto", "cuda")  # a device that the user left open
_LOOK_S = 1.0  # between two looks at actors that have not come
_CONNECT_S = 60.0


class RankActor:
    """A process of Ray that holds a GPU, and becomes a rank when it gets a job."""

    def gpu(self) -> str:
        """The GPU that Ray reserved; empty for none."""
        import ray

        return str(next(iter(ray.get_gpu_ids()), ""))

    def run(self, job: RankJob, address: tuple[str, int], key: bytes) -> int:
        """Work until rank 0 ends."""
        link = connect_soon(address, key, time.monotonic() + _CONNECT_S)
        link.connection.send(RankHello(job.rank))
        use_share_of_cores(job.config.parallel)
        job = replace(job, meeting=replace(job.meeting, own_host=link.own_host))
        return run_rank(job, RankConnection(link.connection))  # type: ignore[arg-type]


class RayRank:
    """Owns a rank that Ray runs."""

    def __init__(self, rank: int, link: NodeConnection, placement: "RayLauncher") -> None:
        self.rank = rank
        self.connection = link.connection
        self._link = link
        self._placement = placement

    @property
    def is_stopped(self) -> bool:
        return False  # only its own machine knows

    def kill(self) -> None:
        self._link.shut()
        self._placement.kill(self.rank)

    def close(self) -> None:
        self._link.close()
        self._placement.close()


class RayLauncher:
    """Owns a placement group with a bundle for every rank; that of rank 0 is on this machine."""

    def __init__(self, folder: Path, config: EngineConfig) -> None:
        import ray

        self._ray: Any = ray
        self._folder = folder
        self._config = config
        self._num = config.parallel.tensor * config.parallel.data
        if not ray.is_initialized():  # a cluster that runs, or one of this machine alone
            ray.init(logging_level="warning", log_to_driver=True)
        self.host: str = ray.util.get_node_ip_address()
        self._has_gpus = config.device in _ANY_GPU and ray.cluster_resources().get("GPU", 0) > 0
        self._group = self._reserve()
        self._actors = [self._actor(rank) for rank in range(self._num)]

    def jobs(self, meeting: MeetingPoint) -> list[RankJob]:
        """The jobs of all ranks. Every other one sees its own GPU only."""
        parallel = replace(self._config.parallel, num_sharing=1 if self._has_gpus else self._num)
        config = replace(self._config, parallel=parallel)
        devices = [config.device] * self._num
        if self._has_gpus:
            own = self._ray.get(self._actors[0].gpu.remote())
            devices = [_own_device(own, os.environ.get("CUDA_VISIBLE_DEVICES", ""))]
            devices += ["cuda:0"] * (self._num - 1)
        return [
            RankJob(
                folder=self._folder,
                config=replace(config, device=device),
                rank=rank,
                has_own_gpu=self._has_gpus,
                meeting=meeting,
            )
            for rank, device in enumerate(devices)
        ]

    def start(self, others: Sequence[RankJob], store_port: int) -> list[RankLink]:
        del store_port  # it is in the jobs
        key, listener = secrets.token_bytes(32), socket.create_server((self.host, 0))
        address = listener.getsockname()[:2]
        ends = [self._actors[job.rank].run.remote(job, address, key) for job in others]
        try:
            with listener:
                return self._accept(listener, key, ends)
        except BaseException:
            self.close()
            raise

    def kill(self, rank: int) -> None:
        with contextlib.suppress(Exception):  # Ray may have noticed its end before
            self._ray.kill(self._actors[rank])

    def close(self) -> None:
        """End all actors and give their places back."""
        for rank in range(len(self._actors)):
            self.kill(rank)
        self._actors = []
        if self._group is not None:
            group, self._group = self._group, None
            with contextlib.suppress(Exception):  # Ray itself may have ended
                self._ray.util.remove_placement_group(group)

    def _reserve(self) -> Any:
        resource, timeout_s = (
            "GPU" if self._has_gpus else "CPU",
            self._config.parallel.nodes.timeout_s,
        )
        bundles: list[dict[str, float]] = [{resource: 1.0} for _ in range(self._num)]
        bundles[0][f"node:{self.host}"] = 0.001  # rank 0 is this process
        group = self._ray.util.placement_group(bundles, strategy="PACK")
        try:
            self._ray.get(group.ready(), timeout=timeout_s)
        except self._ray.exceptions.GetTimeoutError as error:
            self._ray.util.remove_placement_group(group)
            free = self._ray.available_resources().get(resource, 0)
            raise ConfigError(
                f"Ray has no {self._num} {resource}s for {self._num} ranks ({free:g} are free) "
                f"after {timeout_s:g} s; lower --tensor-parallel-size, or raise --dist-timeout"
            ) from error
        return group

    def _actor(self, rank: int) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=rank)
        share = {"num_gpus": 1, "num_cpus": 0} if self._has_gpus else {"num_cpus": 1}
        actor = self._ray.remote(RankActor).options(scheduling_strategy=place, **share)
        return actor.remote()

    def _accept(self, listener: socket.socket, key: bytes, ends: list[Any]) -> list[RankLink]:
        found: dict[int, RankLink] = {}
        end_s = time.monotonic() + self._config.parallel.nodes.timeout_s
        while len(found) < len(ends):
            link = accept(listener, key, min(time.monotonic() + _LOOK_S, end_s))
            if link is not None:
                hello = link.connection.recv()
                assert isinstance(hello, RankHello), hello
                found[hello.rank] = RayRank(hello.rank, link, self)
                continue
            ended, _ = self._ray.wait(ends, num_returns=1, timeout=0)
            if ended or time.monotonic() >= end_s:
                raise ConfigError(self._why(ended))
        return list(found.values())

    def _why(self, ended: list[Any]) -> str:
        try:
            self._ray.get(ended[:1])
        except Exception as error:  # what the actor raised
            lines = str(error).strip().splitlines() or [repr(error)]
            return f"a rank that Ray started failed: {lines[-1]}"
        return "the ranks that Ray started did not come; raise --dist-timeout"


def _own_device(gpu: str, visible: str) -> str:
    """torch's name of the GPU that Ray reserved for rank 0, in this process."""
    names = [name.strip() for name in visible.split(",")] if visible else []
    return f"cuda:{names.index(gpu) if gpu in names else int(gpu)}"
