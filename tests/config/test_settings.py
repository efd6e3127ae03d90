import pytest

from outrider.config.draft import DraftConfig
from outrider.config.engine import CacheConfig, EngineConfig, ExecutionConfig, LimitsConfig
from outrider.config.settings import resolve
from outrider.errors import ConfigError

CHAIN = DraftConfig(drafter="ngram", steps=3)


def settings(config, *, has_cuda=False):
    return resolve(config, model_context=100, has_cuda=has_cuda)


@pytest.mark.parametrize(
    ("has_cuda", "device", "dtype"), [(False, "cpu", "float32"), (True, "cuda", "bfloat16")]
)
def test_auto_becomes_what_the_machine_has(has_cuda, device, dtype):
    resolved = settings(EngineConfig(), has_cuda=has_cuda)
    assert (resolved.device, resolved.dtype) == (device, dtype)
    assert resolved.host.max_context == 100


@pytest.mark.parametrize(("nodes", "step_tokens"), [(1, 512), (8, 512), (64, 32 * 64 + 128)])
def test_a_step_has_room_for_every_rows_drafts_and_a_piece_of_a_prompt(nodes, step_tokens):
    draft = DraftConfig(drafter="ngram", topk=4, nodes=nodes)
    assert settings(EngineConfig(draft=draft)).host.max_step_tokens == step_tokens


@pytest.mark.parametrize(
    ("config", "fix"),
    [
        (EngineConfig(cache=CacheConfig(page_size=65)), "between 1 and 64"),
        (EngineConfig(cache=CacheConfig(kv_tokens=0)), "at least 1"),
        (EngineConfig(limits=LimitsConfig(context=101)), "--max-context 100"),
        (EngineConfig(limits=LimitsConfig(rows=8, step_tokens=8)), "must exceed max rows"),
        (EngineConfig(limits=LimitsConfig(rows=8, step_tokens=32), draft=CHAIN), "times nodes"),
        (EngineConfig(draft=DraftConfig(drafter="ngram", nodes=65)), "change --nodes"),
        (EngineConfig(execution=ExecutionConfig(depth=2)), "0 \\(wait\\) or 1 \\(overlap\\)"),
        (EngineConfig(device="cuda"), "--device cpu"),
        (EngineConfig(dtype="float8"), "choose from auto, float32"),
        (EngineConfig(execution=ExecutionConfig(executor="graph")), "choose from auto, eager"),
    ],
)
def test_a_setting_that_cannot_work_stops_at_start_and_names_the_fix(config, fix):
    with pytest.raises(ConfigError, match=fix):
        settings(config)
