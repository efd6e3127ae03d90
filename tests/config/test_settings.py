import pytest

from outrider.config.draft_config import DraftConfig
from outrider.config.engine_config import CacheConfig, EngineConfig, ExecutionConfig, LimitsConfig
from outrider.config.settings import resolve_settings
from outrider.errors import ConfigError

CHAIN = DraftConfig(drafter="ngram", steps=3)


def settings(config, *, num_cuda=0):
    return resolve_settings(config, model_context=100, num_cuda=num_cuda)


@pytest.mark.parametrize(
    ("num_cuda", "device", "dtype"), [(0, "cpu", "packed"), (2, "cuda", "bfloat16")]
)
def test_auto_chooses_device_and_dtype_by_the_machine(num_cuda, device, dtype):
    resolved = settings(EngineConfig(), num_cuda=num_cuda)
    assert (resolved.device, resolved.dtype) == (device, dtype)
    assert resolved.host.max_context == 100


@pytest.mark.parametrize(("num_cuda", "executor", "depth"), [(0, "eager", 0), (1, "breakable", 1)])
def test_a_gpu_captures_graphs_and_overlaps_steps_and_a_cpu_does_not(num_cuda, executor, depth):
    execution = settings(EngineConfig(), num_cuda=num_cuda).execution
    assert (execution.executor, execution.depth) == (executor, depth)


def test_the_tape_executor_is_refused_on_a_gpu():
    config = EngineConfig(execution=ExecutionConfig(executor="tape"))
    with pytest.raises(ConfigError, match="use graph on a CUDA device"):
        settings(config, num_cuda=1)


@pytest.mark.parametrize(("nodes", "step_tokens"), [(1, 512), (8, 512), (64, 32 * 64 + 128)])
def test_step_tokens_cover_the_drafts_of_all_rows_and_a_prompt_chunk(nodes, step_tokens):
    draft = DraftConfig(drafter="ngram", topk=4, nodes=nodes)
    assert settings(EngineConfig(draft=draft)).host.max_step_tokens == step_tokens


@pytest.mark.parametrize(
    ("config", "fix"),
    [
        (EngineConfig(cache=CacheConfig(page_size=257)), "block_size must be between 1 and 256"),
        (
            EngineConfig(cache=CacheConfig(row_snapshots=-1)),
            "row_snapshots must be auto, 0 or more",
        ),
        (EngineConfig(cache=CacheConfig(kv_tokens=0)), "kv_tokens must be at least 1"),
        (
            EngineConfig(limits=LimitsConfig(context=101)),
            "--max-context / max_model_len 101 .* use 100 or less",
        ),
        (EngineConfig(limits=LimitsConfig(context=0)), "--max-context / max_model_len must be"),
        (EngineConfig(limits=LimitsConfig(rows=0)), "max_num_seqs must be at least 1"),
        (EngineConfig(limits=LimitsConfig(step_tokens=0)), "max_num_batched_tokens must be at"),
        (EngineConfig(limits=LimitsConfig(rows=8, step_tokens=8)), "must exceed max_num_seqs"),
        (EngineConfig(limits=LimitsConfig(rows=8, step_tokens=32), draft=CHAIN), "times nodes"),
        (EngineConfig(draft=DraftConfig(drafter="ngram", nodes=65)), "change --nodes"),
        (EngineConfig(execution=ExecutionConfig(depth=2)), "0 \\(wait\\) or 1 \\(overlap\\)"),
        (EngineConfig(device="cuda"), "--device cpu"),
        (EngineConfig(dtype="float8"), "--dtype / dtype .* choose from auto, float32"),
        (EngineConfig(execution=ExecutionConfig(executor="fast")), "choose from auto, eager"),
        (EngineConfig(execution=ExecutionConfig(executor="graph")), "needs a CUDA device; use"),
        (
            EngineConfig(execution=ExecutionConfig(record="late")),
            "choose from auto, lazy, at start",
        ),
        (EngineConfig(cache=CacheConfig(memory_share=0.0)), "gpu_memory_utilization must be above"),
    ],
)
def test_a_setting_that_cannot_work_stops_at_start_and_names_the_fix(config, fix):
    with pytest.raises(ConfigError, match=fix):
        settings(config)


@pytest.mark.parametrize("device", ["foo", "mps", "", "cuda:", "cuda:x", "cuda1", "CPU", "cpu:0"])
def test_a_device_that_does_not_exist_is_refused_with_those_that_do(device):
    with pytest.raises(ConfigError, match="use auto, cpu, cuda or cuda:N") as caught:
        settings(EngineConfig(device=device), num_cuda=2)
    assert repr(device) in str(caught.value)


def test_a_cuda_device_is_chosen_by_number():
    assert settings(EngineConfig(device="cuda:1"), num_cuda=2).device == "cuda:1"
    with pytest.raises(ConfigError, match="no cuda:2; the last CUDA device is cuda:1"):
        settings(EngineConfig(device="cuda:2"), num_cuda=2)
