"""Ranks on one device divide its memory."""

from pathlib import Path

import pytest
import torch

from outrider.config.engine_config import EngineConfig, NodesConfig, ParallelConfig
from outrider.config.settings import resolve_settings
from outrider.runtime.kv_capacity import CPU_KV_BYTES, CPU_MEMORY_SHARE, free_bytes, share_of_gpu
from outrider.runtime.rank_jobs import local_jobs
from outrider.runtime.rank_messages import MeetingPoint

CPU = torch.device("cpu")
HERE = MeetingPoint(host="h", port=1, own_host="h")


@pytest.mark.parametrize("num", [1, 2, 8])
def test_the_caches_of_all_ranks_together_fit_in_the_memory_of_one(num):
    most = 2 * CPU_KV_BYTES * CPU_MEMORY_SHARE
    share = free_bytes("auto", device=CPU, memory_share=0.9, num_sharing=num)
    assert num * share <= most
    whole = free_bytes("auto", device=CPU, memory_share=0.9, num_sharing=1)
    assert num * share <= 1.1 * whole  # memory in use changes meanwhile


def test_engines_of_one_gpu_have_a_share_each():
    alone = share_of_gpu(free=90, total=100, held=10, memory_share=0.4)
    beside = share_of_gpu(free=50, total=100, held=10, memory_share=0.4)
    assert alone == beside == 30


def test_an_engine_leaves_what_others_hold_and_some_to_spare():
    assert share_of_gpu(free=50, total=100, held=10, memory_share=0.9) == 45
    assert share_of_gpu(free=90, total=100, held=10, memory_share=1.0) == 90


@pytest.mark.parametrize(
    ("parallel", "num"),
    [
        (ParallelConfig(tensor=2), 2),
        (ParallelConfig(tensor=4, nodes=NodesConfig(num=2, address="h:1")), 2),
        (ParallelConfig(data=3, is_expert_parallel=True), 3),
    ],
)
def test_every_rank_knows_how_many_share_its_device(parallel, num):
    config = EngineConfig(device="cpu", parallel=parallel)
    jobs = local_jobs(Path("model"), config, HERE)
    settings = [resolve_settings(job.config, model_context=64, num_cuda=0) for job in jobs]
    assert [each.num_sharing for each in settings] == [num] * num
