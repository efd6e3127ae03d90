"""The user's settings of an engine. "auto" is allowed here and nowhere later."""

from dataclasses import dataclass
from typing import Literal

from outrider.config.draft_config import NO_DRAFT, DraftConfig
from outrider.errors import ConfigError

Auto = Literal["auto"]
Dtype = Literal["float32", "bfloat16", "float16", "int8"]
Executor = Literal["eager", "graph", "breakable", "tape"]
Arithmetic = Literal["fast", "fixed"]  # fixed: the bits of a row never depend on the shape
CaptureTime = Literal["lazy", "at start"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The paged KV cache."""

    page_size: int | Auto = "auto"  # tokens per page, 1 to 256; auto is 16, or whole blocks
    kv_tokens: int | Auto = "auto"  # capacity in tokens; auto takes what memory allows
    prefix: bool = True  # share the KV of equal prefixes between requests
    memory_share: float = 0.9  # of a GPU's memory, for all that the engine holds there


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """How much work is taken on at a time."""

    context: int | Auto = "auto"  # prompt and output of one request; auto is the model's own
    rows: int | Auto = "auto"  # requests that run at the same time
    # Query tokens of one step, drafts included: what rows leave of it, prompts are cut into.
    step_tokens: int | Auto = "auto"
    queued: int = 1024  # requests that may wait


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionConfig:
    """How steps are run."""

    executor: Executor | Auto = "auto"
    depth: int | Auto = "auto"  # steps in flight while the next is planned: 0 waits, 1 overlaps
    record: CaptureTime = "lazy"  # when shapes are recorded: as they come, or all before the first
    deterministic: bool = False  # on a GPU, the bits of a row never depend on the step's shape


def choose_executor(asked: Executor | Auto, *, is_eager: bool) -> Executor | Auto:
    """The one way to run steps that our word and the other engines' words for eager mean."""
    if is_eager and asked not in ("auto", "eager"):
        raise ConfigError(
            f"--executor {asked} and --disable-cuda-graph (enforce_eager) choose the executor "
            "twice; keep one of them"
        )
    return "eager" if is_eager else asked


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything an engine is built from, besides the model's folder."""

    dtype: Dtype | Auto = "auto"
    device: str = "auto"  # "cpu", "cuda", "cuda:1", ...
    execution: ExecutionConfig = ExecutionConfig()
    cache: CacheConfig = CacheConfig()
    limits: LimitsConfig = LimitsConfig()
    draft: DraftConfig = NO_DRAFT  # "auto" needs somebody who knows the model
