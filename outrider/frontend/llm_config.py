"""The records of an engine's configuration, from the arguments of `LLM`.

`flags` has further arguments. Where a name of vLLM or SGLang set one of `LLM`'s own, it counts.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from outrider.config.attention_choice import DRAFT_FLAG, parse_attention
from outrider.config.draft_config import DraftConfig, check_draft_dtype
from outrider.config.engine_config import (
    Auto,
    CacheConfig,
    CaptureTime,
    ExecutionConfig,
    Executor,
    LimitsConfig,
    NodesConfig,
    ParallelConfig,
    choose_executor,
)
from outrider.config.parallel_checks import check_parallel
from outrider.errors import ConfigError


def own_draft(
    draft: str | Path | DraftConfig, flags: Mapping[str, Any], **arguments: Any
) -> DraftConfig:
    """The draft configuration. Arguments other than "auto" replace its fields."""
    arguments["adaptive"] = flags.get("adaptive", arguments["adaptive"])
    arguments["check"] = flags.get("check_draft", "auto")
    for field, name in (("adaptive", "adaptive"), ("check", "check_draft")):
        if arguments[field] not in ("auto", True, False):
            raise ConfigError(f"{name} must be True, False or 'auto', got {arguments[field]!r}")
    arguments["dtype"] = flags.get("draft_dtype", "auto")
    check_draft_dtype(arguments["dtype"])
    attention = flags.get("speculative_draft_attention_backend") or "auto"
    arguments["attention"] = parse_attention(attention, DRAFT_FLAG)
    config = draft if isinstance(draft, DraftConfig) else DraftConfig(drafter=str(draft))
    return replace(config, **{name: value for name, value in arguments.items() if value != "auto"})


def parallel_config(flags: Mapping[str, Any]) -> ParallelConfig:
    parallel = ParallelConfig(
        tensor=flags.get("tensor_parallel_size", 1),
        data=flags.get("data_parallel_size", 1),
        is_expert_parallel=flags.get("enable_expert_parallel", False),
        timeout_s=flags.get("rank_timeout", ParallelConfig().timeout_s),
        nodes=NodesConfig(
            num=flags.get("nnodes", 1),
            rank=flags.get("node_rank", 0),
            address=flags.get("dist_init_addr", ""),
            timeout_s=flags.get("dist_timeout", NodesConfig().timeout_s),
            backend=flags.get("distributed_executor_backend") or "mp",
        ),
    )
    check_parallel(parallel)  # before a model is downloaded
    if parallel.nodes.rank:
        raise ConfigError(
            f"machine {parallel.nodes.rank} runs `outrider serve --node-rank "
            f"{parallel.nodes.rank}`; only machine 0 answers"
        )
    return parallel


def limits_config(
    flags: Mapping[str, Any],
    max_model_len: int | None,
    max_num_seqs: int | Auto,
    step_tokens: int | Auto,
) -> LimitsConfig:
    length = flags.get("max_model_len", max_model_len)
    return LimitsConfig(
        context="auto" if length is None else length,
        rows=max_num_seqs,
        step_tokens=flags.get("max_num_batched_tokens", step_tokens),
    )


def cache_config(
    flags: Mapping[str, Any],
    page_size: int | Auto,
    kv_tokens: int | Auto,
    prefix: bool,
    memory_share: float,
) -> CacheConfig:
    """The paged KV cache."""
    return CacheConfig(
        page_size=page_size,
        kv_tokens=kv_tokens,
        prefix=flags.get("enable_prefix_caching", prefix),
        memory_share=memory_share,
        kv_dtype=flags.get("kv_cache_dtype", "auto"),
        row_snapshots=flags.get("row_snapshots", "auto"),
        window_tokens=flags.get("window_tokens", "auto"),
    )


def execution_config(
    flags: Mapping[str, Any],
    executor: Executor | Auto,
    enforce_eager: bool,
    depth: int | Auto,
    record: CaptureTime | Auto,
    deterministic: bool,
) -> ExecutionConfig:
    """How steps run. vLLM's argument for eager chooses the executor, too."""
    is_eager = flags.get("enforce_eager", enforce_eager)
    if not isinstance(is_eager, bool):
        raise ConfigError(f"enforce_eager must be a bool, got {is_eager!r}")
    return ExecutionConfig(
        executor=choose_executor(executor, is_eager=is_eager),
        depth=flags.get("depth", depth),
        record=record,
        deterministic=flags.get("deterministic", deterministic),
    )
