"""Requests go to the replica that knows their prompt, unless another one is much idler."""

from dataclasses import replace

import pytest
from support.engines import make_submission
from support.paper import facts

from outrider.config.engine_config import (
    CacheConfig,
    EngineConfig,
    NodesConfig,
    ParallelConfig,
)
from outrider.errors import ConfigError
from outrider.server.choose_replica import ReplicaChooser
from outrider.server.metrics import Meter
from outrider.server.remote_engine import RemoteEngine
from outrider.server.remote_replicas import RemoteReplicas
from outrider.server.start_progress import memory_line
from outrider.server.worker_messages import Abort, Submit
from outrider.server.worker_plans import check_same_devices, plan_workers
from outrider.structured.grammar_cache import NO_GRAMMARS
from outrider.wire.row_sampling import RowSampling
from outrider.wire.runner_facts import RankFacts

GREEDY = RowSampling(seed=0, temperature=0.0)


def request(name, prompt, salt=""):
    return replace(make_submission(name, prompt, GREEDY), cache_salt=salt)


LONG = list(range(100))


def test_a_prompt_goes_where_its_beginning_went_and_others_to_the_idlest():
    chooser = ReplicaChooser(3)
    assert chooser.choose(request("a", LONG), [2, 1, 3]) == 1
    assert chooser.choose(request("b", [*LONG[:64], 7, 8]), [0, 4, 0]) == 1
    assert chooser.choose(request("c", [9] * 64), [1, 4, 0]) == 2
    assert chooser.choose(request("d", LONG[:20]), [1, 1, 0]) == 2  # too short to be known


def test_a_replica_that_is_much_busier_is_not_chosen_for_its_cache():
    chooser = ReplicaChooser(2)
    assert chooser.choose(request("a", LONG), [0, 0]) == 0
    assert chooser.choose(request("b", LONG), [4, 0]) == 0
    assert chooser.choose(request("c", LONG), [5, 0]) == 1


def test_another_salt_and_an_emptied_cache_know_nothing():
    chooser = ReplicaChooser(2)
    assert chooser.choose(request("a", LONG), [0, 1]) == 0
    assert chooser.choose(request("b", LONG, salt="own"), [2, 1]) == 1
    assert chooser.choose(request("c", LONG), [2, 1]) == 0
    chooser.forget(0)
    assert chooser.choose(request("d", LONG), [2, 1]) == 1


def replicas_with(num):
    sent = [[] for _ in range(num)]
    meter, known = Meter("m"), facts(max_rows=2)
    engines = [
        RemoteEngine(known, grammars=NO_GRAMMARS, max_queued=3, meter=meter) for _ in range(num)
    ]
    for engine, messages in zip(engines, sent, strict=True):
        engine.attach(messages.append)
    return RemoteReplicas(engines), sent


def test_requests_are_spread_and_aborted_where_they_run():
    engine, sent = replicas_with(2)
    for name in "abcd":
        engine.add(request(name, [5]))
    assert [len(messages) for messages in sent] == [2, 2]
    assert engine.num_in_flight == 4
    assert engine.max_requests == 10
    engine.abort("b")
    aborted = [[each for each in messages if isinstance(each, Abort)] for messages in sent]
    assert [len(each) for each in aborted] == [0, 1]


def test_a_replica_without_a_worker_gets_no_new_request():
    engine, sent = replicas_with(2)
    engine.replicas[0].detach(frozenset())
    for name in "abc":
        engine.add(request(name, LONG))
    assert [sum(isinstance(each, Submit) for each in messages) for messages in sent] == [0, 3]
    assert engine.has_worker


def config_of(device="auto", kv_tokens="auto", **parallel):
    return EngineConfig(
        device=device,
        cache=CacheConfig(kv_tokens=kv_tokens),
        parallel=ParallelConfig(**parallel),
    )


def test_each_replica_has_gpus_and_cores_of_its_own():
    plans = plan_workers(config_of(data=2, tensor=2), {})
    assert [plan.environment["CUDA_VISIBLE_DEVICES"] for plan in plans] == ["0,1", "2,3"]
    assert {plan.config.parallel for plan in plans} == {ParallelConfig(tensor=2)}
    assert all(int(plan.environment["OMP_NUM_THREADS"]) >= 1 for plan in plans)
    named = {"CUDA_VISIBLE_DEVICES": "5,GPU-7,3", "OMP_NUM_THREADS": "8"}
    plans = plan_workers(config_of(data=3), named)
    assert [plan.environment for plan in plans] == [
        {"CUDA_VISIBLE_DEVICES": name} for name in ("5", "GPU-7", "3")
    ]
    with pytest.raises(ConfigError, match="need 4 GPUs, and CUDA_VISIBLE_DEVICES names 3"):
        plan_workers(config_of(data=4), named)


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_gpus_stay_hidden(hidden):
    plans = plan_workers(config_of(data=2), {"CUDA_VISIBLE_DEVICES": hidden})
    assert all("CUDA_VISIBLE_DEVICES" not in plan.environment for plan in plans)


def test_ranks_that_share_experts_or_span_machines_are_one_worker():
    for parallel in (
        {"data": 2, "is_expert_parallel": True},
        {"data": 2, "nodes": NodesConfig(num=2, address="h:1")},
        {"tensor": 2},
        {},
    ):
        config = config_of(**parallel)
        (plan,) = plan_workers(config, {})
        assert plan.config == config
        assert not plan.environment


def test_replicas_on_one_gpu_need_a_size_of_their_caches():
    with pytest.raises(ConfigError, match="set --kv-tokens"):
        plan_workers(config_of("cuda:0", data=2), {})
    assert len(plan_workers(config_of("cuda:0", kv_tokens=4096, data=2), {})) == 2


def test_the_start_line_counts_replicas():
    known = facts(max_rows=2)
    assert memory_line([known]).startswith("weights 0.00 GB; KV cache of")
    assert memory_line([known, known]).startswith("2 replicas, each with weights 0.00 GB")


def test_too_few_gpus_are_noticed_though_a_cpu_would_do():
    known, sizes = facts(max_rows=2), {"weight_bytes": 0, "kv_bytes": 0}

    def on(device):
        rank = RankFacts(rank=0, pid=1, host="h", device=device, **sizes)
        return replace(known, memory=replace(known.memory, ranks=(rank,)))

    check_same_devices([on("cuda:0"), on("cuda:0")])
    with pytest.raises(ConfigError, match="found 1 GPUs; lower --data-parallel-size to 1"):
        check_same_devices([on("cuda:0"), on("cpu")])
