"""The resolved settings of an engine: values only, no "auto"."""

import re
from dataclasses import dataclass
from typing import get_args

from outrider.config.attention_choice import (
    USUAL_ATTENTION,
    AttentionChoice,
    resolve_attention,
)
from outrider.config.draft_config import resolve_budget
from outrider.config.engine_config import (
    Arithmetic,
    CaptureTime,
    Dtype,
    EngineConfig,
    Executor,
    KVCacheDtype,
    KVDtype,
    QuantizationFlag,
)
from outrider.errors import ConfigError

# Defaults. A chunk of 128 tokens keeps the cores of a CPU busy; a GPU needs some thousands of
# tokens to be bound by arithmetic.
_CPU_ROWS, _CPU_STEP_TOKENS = 32, 512
_GPU_ROWS, _GPU_STEP_TOKENS = 256, 8192
_MIN_CHUNK = 128
USUAL_PAGE = 16  # tokens
MAX_PAGE = 256  # tokens; a model with compressed blocks needs pages of whole blocks
_DEVICE = re.compile(r"cpu|cuda(:[0-9]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """The settings of the engine loop and the scheduler. Lengths are in tokens."""

    max_context: int
    max_rows: int
    max_step_tokens: int
    max_queued: int
    page_size: int
    prefix_cache: bool
    max_loras: int = 0  # adapters that can run in one step


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSettings:
    """How steps are run."""

    executor: Executor
    depth: int
    record: CaptureTime
    arithmetic: Arithmetic
    can_decode: bool = True  # False on a prefill server: no shape with decode rows is captured


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The resolved configuration. It is never changed. A callee gets only the values it needs."""

    dtype: Dtype
    device: str
    execution: ExecutionSettings
    memory_share: float
    host: HostSettings
    num_sharing: int = 1  # processes that share the memory of the device
    kv_dtype: KVDtype = "auto"  # auto: the type of activations
    attention: AttentionChoice = USUAL_ATTENTION
    # Layers with a sliding window keep what they see. A role ships whole texts to another server.
    has_window_pages: bool = True
    gets_pages: bool = False  # other servers write pages between two steps


def resolve_settings(
    config: EngineConfig, *, model_context: int, num_cuda: int, usual_page: int = USUAL_PAGE
) -> Settings:
    """Check the user's configuration against the model and replace every "auto" by a value."""
    _check(config)
    device = _device(config.device, num_cuda)
    on_cpu = device == "cpu"
    context = model_context if config.limits.context == "auto" else config.limits.context
    if context > model_context:
        raise ConfigError(
            f"--max-context / max_model_len {context} exceeds the model's {model_context}; "
            f"use {model_context} or less"
        )
    rows = config.limits.rows
    if rows == "auto":
        rows = _CPU_ROWS if on_cpu else _GPU_ROWS
    return Settings(
        dtype=resolve_dtype(config, num_cuda=num_cuda),
        device=device,
        execution=_execution(config, on_cpu=on_cpu),
        memory_share=config.cache.memory_share,
        host=HostSettings(
            max_context=context,
            max_rows=rows,
            max_step_tokens=_step_tokens(config, rows, on_cpu=on_cpu),
            max_queued=config.limits.queued,
            page_size=usual_page if config.cache.page_size == "auto" else config.cache.page_size,
            prefix_cache=config.cache.prefix,
            max_loras=config.lora.max_loras if config.lora.is_enabled else 0,
        ),
        num_sharing=config.parallel.num_sharing,
        kv_dtype="fp8_e4m3" if config.cache.kv_dtype == "fp8" else config.cache.kv_dtype,
        attention=resolve_attention(
            target=config.attention, draft=config.draft.attention, on_cpu=on_cpu
        ),
        has_window_pages=config.disaggregation.mode == "null",
        gets_pages=config.disaggregation.mode == "decode",
    )


def runs_on_cpu(config: EngineConfig, *, num_cuda: int) -> bool:
    return _device(config.device, num_cuda) == "cpu"


def resolve_dtype(config: EngineConfig, *, num_cuda: int) -> Dtype:
    """The type of the weights. Sizes of draft trees depend on it, and other settings on them."""
    usual: Dtype = "packed" if runs_on_cpu(config, num_cuda=num_cuda) else "bfloat16"
    return usual if config.dtype == "auto" else config.dtype


def _execution(whole: EngineConfig, *, on_cpu: bool) -> ExecutionSettings:
    """A GPU captures graphs and overlaps steps; a CPU gains nothing from either."""
    config = whole.execution
    executor = config.executor
    if on_cpu and executor in ("graph", "breakable"):
        raise ConfigError(f"--executor {executor} needs a CUDA device; use auto or eager on a CPU")
    if not on_cpu and executor == "tape":
        raise ConfigError("--executor tape imitates a graph on a CPU; use graph on a CUDA device")
    if executor == "auto":
        executor = "eager" if on_cpu else "breakable"
    return ExecutionSettings(
        executor=executor,
        depth=(0 if on_cpu else 1) if config.depth == "auto" else config.depth,
        record="lazy" if config.record == "auto" else config.record,
        arithmetic="fixed" if config.deterministic else "fast",
        can_decode=whole.disaggregation.mode != "prefill",
    )


def _device(requested: str, num_cuda: int) -> str:
    """The torch name of the device. Refuses a device that does not exist."""
    if requested == "auto":
        return "cuda" if num_cuda else "cpu"
    if not _DEVICE.fullmatch(requested):
        raise ConfigError(f"unknown device {requested!r}; use auto, cpu, cuda or cuda:N")
    if requested == "cpu":
        return requested
    if not num_cuda:
        raise ConfigError("no CUDA device is visible; use --device cpu")
    if int(requested.partition(":")[2] or 0) >= num_cuda:
        raise ConfigError(f"there is no {requested}; the last CUDA device is cuda:{num_cuda - 1}")
    return requested


def _step_tokens(config: EngineConfig, rows: int, *, on_cpu: bool) -> int:
    """Query tokens of a step: the draft trees of all rows, and a chunk of prompt tokens."""
    limits, nodes = config.limits, resolve_budget(config.draft).tree.nodes
    decoding = rows * nodes
    if limits.step_tokens == "auto":
        return max(_CPU_STEP_TOKENS if on_cpu else _GPU_STEP_TOKENS, decoding + _MIN_CHUNK)
    if limits.step_tokens <= decoding:
        raise ConfigError(
            f"max_num_batched_tokens ({limits.step_tokens}) must exceed max_num_seqs "
            f"({rows}) times nodes ({nodes}), or prompts would never advance beside "
            "decoding rows; raise it or leave it out"
        )
    return limits.step_tokens


def _check(config: EngineConfig) -> None:
    limits, cache, execution = config.limits, config.cache, config.execution
    _check_choice("--dtype / dtype", config.dtype, ("auto", *get_args(Dtype)))
    _check_choice("--quantization / quantization", config.quantization, get_args(QuantizationFlag))
    _check_choice("--kv-cache-dtype / kv_cache_dtype", cache.kv_dtype, get_args(KVCacheDtype))
    if config.quantization == "fp8" and config.dtype == "int8":
        raise ConfigError("--dtype int8 and --quantization quantise twice; keep one of them")
    _check_choice("--executor / executor", execution.executor, ("auto", *get_args(Executor)))
    _check_choice("--record / record", execution.record, ("auto", *get_args(CaptureTime)))
    if cache.page_size != "auto" and not 1 <= cache.page_size <= MAX_PAGE:
        raise ConfigError(f"block_size must be between 1 and {MAX_PAGE}, got {cache.page_size}")
    if execution.depth not in ("auto", 0, 1):
        raise ConfigError(f"depth must be 0 (wait) or 1 (overlap), got {execution.depth}")
    snapshots = cache.row_snapshots
    if snapshots != "auto" and (not isinstance(snapshots, int) or snapshots < 0):
        raise ConfigError(f"row_snapshots must be auto, 0 or more, got {snapshots!r}")
    windows = cache.window_tokens
    if windows != "auto" and (not isinstance(windows, int) or windows < 0):
        raise ConfigError(f"window_tokens must be auto, 0 or more, got {windows!r}")
    share = cache.memory_share
    if not isinstance(share, float | int) or not 0 < share <= 1:
        raise ConfigError(f"gpu_memory_utilization must be above 0 and at most 1, got {share!r}")
    named = {
        "max_num_seqs": 1 if limits.rows == "auto" else limits.rows,
        "max_num_batched_tokens": 1 if limits.step_tokens == "auto" else limits.step_tokens,
        "LimitsConfig.queued": limits.queued,
        "--max-context / max_model_len": 1 if limits.context == "auto" else limits.context,
        "kv_tokens": 1 if cache.kv_tokens == "auto" else cache.kv_tokens,
    }
    for name, value in named.items():
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"unknown {name} {value!r}; choose from {', '.join(choices)}")
