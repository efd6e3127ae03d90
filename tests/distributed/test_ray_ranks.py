"""Ranks that Ray starts give the tokens of one process. Needs the package ray."""

import importlib.util
import os
import signal

import pytest
from support.processes import is_running, wait_for_end
from support.spoken import tiny_llama, write_tokenizer

from outrider import LLM, SamplingParams
from outrider.config.engine_config import EngineConfig, NodesConfig, ParallelConfig
from outrider.config.parallel_checks import check_parallel
from outrider.errors import ConfigError
from outrider.server.worker_plans import plan_workers
from tests.support.tiny import tiny_model

PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=10, ignore_eos=True)
PROMPTS = [{"prompt_token_ids": [(7 * row + 3 * i) % 40 + 1 for i in range(5)]} for row in range(3)]
RAY = {"distributed_executor_backend": "ray"}

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs ray: pip install 'outrider[ray]'"
)


def parallel(**fields):
    return ParallelConfig(tensor=2, nodes=NodesConfig(**fields))


def test_wrong_uses_of_ray_are_refused_by_name():
    with pytest.raises(ConfigError, match="must be mp or ray, got 'slurm'"):
        check_parallel(parallel(backend="slurm"))
    with pytest.raises(ConfigError, match="leave --nnodes out"):
        check_parallel(parallel(backend="ray", num=2, address="h:1"))
    replicas = ParallelConfig(data=2, nodes=NodesConfig(backend="ray"))
    with pytest.raises(ConfigError, match="start one server per replica"):
        plan_workers(EngineConfig(parallel=replicas), {})


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="ray is installed")
def test_a_missing_ray_is_named_with_its_extra():
    with pytest.raises(ConfigError, match=r"install it with pip install .*ray"):
        check_parallel(parallel(backend="ray"))


@pytest.fixture(scope="module", name="cluster")
def local_cluster():
    import ray

    ray.init(num_cpus=2, logging_level="error", include_dashboard=False)
    yield ray
    ray.shutdown()


def tokens(llm):
    return [list(each.outputs[0].token_ids) for each in llm.generate(PROMPTS, PARAMS)]


def make(folder, **arguments):
    return LLM(
        folder,
        draft="ngram",
        adaptive=False,
        device="cpu",
        max_num_seqs=4,
        kv_tokens=1024,
        **arguments,
    )


@needs_ray
@pytest.mark.slow
def test_two_ranks_in_a_placement_group_answer_and_give_their_places_back(tmp_path, cluster):
    tiny_llama().save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    expected = tokens(make(tmp_path))
    llm = make(tmp_path, tensor_parallel_size=2, **RAY)
    assert tokens(llm) == expected
    ranks = llm._engine.facts.memory.ranks
    assert ranks[0].pid == os.getpid()
    assert is_running(ranks[1].pid)
    assert cluster.available_resources().get("CPU", 0) == 0  # both places are taken
    os.kill(ranks[1].pid, signal.SIGKILL)
    failed = llm.generate(PROMPTS, PARAMS)
    assert all("rank 1 has ended" in each.outputs[0].error for each in failed)
    del llm
    again = make(tmp_path, tensor_parallel_size=2, **RAY)  # in the places of the lost ones
    pid = again._engine.facts.memory.ranks[1].pid
    assert tokens(again) == expected
    del again
    wait_for_end(pid)


@needs_ray
@pytest.mark.slow
def test_experts_are_divided_among_ranks_of_ray(tmp_path, cluster):
    tiny_model("qwen3-moe").save_pretrained(tmp_path)
    expected = tokens(make(tmp_path))
    llm = make(tmp_path, data_parallel_size=2, enable_expert_parallel=True, **RAY)
    assert tokens(llm) == expected


@needs_ray
@pytest.mark.slow
def test_too_few_places_are_an_error_that_names_the_number(tmp_path, cluster):
    tiny_llama().save_pretrained(tmp_path)
    tiny = {"tensor_parallel_size": 2, "dist_timeout": 3.0, **RAY}
    held = cluster.util.placement_group([{"CPU": 1}])
    cluster.get(held.ready())
    with pytest.raises(ConfigError, match=r"Ray has no 2 CPUs for 2 ranks \(1 are free\)"):
        make(tmp_path, **tiny)
    cluster.util.remove_placement_group(held)
