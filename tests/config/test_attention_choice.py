"""Names of attention backends, which are ours, another engine's, or refused with the reason."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from outrider.config.attention_choice import (
    DEVICES,
    DRAFT_FLAG,
    HOST_LENGTHS,
    REFUSED,
    SAME,
    TARGET_FLAG,
    AttentionChoice,
    AttentionName,
    host_knows_lengths,
    parse_attention,
    resolve_attention,
)
from outrider.config.draft_config import NO_DRAFT, DraftConfig
from outrider.config.draft_dialects import choose_dialect
from outrider.config.engine_config import EngineConfig
from outrider.config.settings import resolve_settings
from outrider.errors import ConfigError

PAGE = (Path(__file__).parents[2] / "docs/attention.md").read_text()
NAMES = get_args(AttentionName)


@pytest.mark.parametrize(
    ("given", "ours"),
    [("TRITON_ATTN", "triton"), ("torch_native", "reference"), ("Auto", "auto"), ("dsv4", "auto")],
)
def test_names_of_other_engines_are_ours(given, ours):
    assert parse_attention(given, TARGET_FLAG) == ours


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("FLASHINFER", "lengths of all rows"),
        ("fa3", "not part of Outrider"),
        ("trtllm_mla", "not part of Outrider"),
        ("ROCM_AITER_UNIFIED_ATTN", "not part of Outrider"),
        ("quick", "no such backend"),
    ],
)
@pytest.mark.parametrize("flag", [TARGET_FLAG, DRAFT_FLAG])
def test_other_backends_are_refused_by_name_with_the_reason_and_the_fix(name, reason, flag):
    with pytest.raises(ConfigError, match=reason) as refused:
        parse_attention(name, flag)
    assert str(refused.value).startswith(f"{flag} {name}")
    assert str(refused.value).endswith(f"use one of {', '.join(NAMES)}")


def test_a_drafter_has_the_backend_of_the_target_unless_it_has_another():
    config = EngineConfig(device="cpu", attention="reference", draft=NO_DRAFT)
    settings = resolve_settings(config, model_context=64, num_cuda=0)
    assert settings.attention == AttentionChoice(target="reference", draft="reference")
    mixed = replace(config, draft=replace(NO_DRAFT, attention="per_layer"))
    settings = resolve_settings(mixed, model_context=64, num_cuda=0)
    assert settings.attention == AttentionChoice(target="reference", draft="per_layer")


def test_vllm_names_the_backend_of_the_drafter_in_its_own_config():
    own, vllm = DraftConfig(), {"model": "x", "attention_backend": "TRITON_ATTN"}
    assert choose_dialect(own, vllm=vllm, sglang={}).attention == "triton"
    flag = replace(own, attention="per_layer")
    assert choose_dialect(flag, vllm={"model": "x"}, sglang={}).attention == "per_layer"
    sglang = {"algorithm": "EAGLE", "draft_model_path": "x"}
    assert choose_dialect(flag, vllm=None, sglang=sglang).attention == "per_layer"
    with pytest.raises(ConfigError, match="choose two backends"):
        choose_dialect(flag, vllm=vllm, sglang={})
    with pytest.raises(ConfigError, match="attention_backend of --speculative-config FLASH_ATTN"):
        choose_dialect(own, vllm={"model": "x", "attention_backend": "FLASH_ATTN"}, sglang={})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("on_cpu", [True, False])
def test_a_backend_of_another_device_is_refused(name, on_cpu):
    for roles in ({"target": name, "draft": "auto"}, {"target": "auto", "draft": name}):
        if ("cpu" if on_cpu else "cuda") in DEVICES[name]:
            resolve_attention(**roles, on_cpu=on_cpu)
            continue
        with pytest.raises(ConfigError, match=f"{name} does not run on"):
            resolve_attention(**roles, on_cpu=on_cpu)


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_role_has_lengths_on_the_host_only_while_steps_wait_for_each_other(role):
    assert [host_knows_lengths(role, depth) for depth in (0, 1)] == [True, False]


def test_the_page_has_every_name_and_the_table_of_lengths():
    for name in NAMES:
        assert f"| `{name}` | {', '.join(DEVICES[name])} |" in PAGE
    for name in (*SAME, *REFUSED):
        assert f"`{name}`" in PAGE
    words = {True: "yes", False: "no"}
    for (role, kind), known in HOST_LENGTHS.items():
        assert f"| {role} | {kind} | {words[known[0]]} | {words[known[1]]} |" in PAGE
