"""The user's settings of an engine. Only here may a value be "auto"."""

from dataclasses import dataclass
from typing import Literal

from outrider.config.attention_choice import AttentionName
from outrider.config.draft_config import NO_DRAFT, DraftConfig
from outrider.config.kv_events_config import NO_KV_EVENTS, KVEventsConfig
from outrider.errors import ConfigError

Auto = Literal["auto"]
# packed: weights from GGUF blocks stay in them on a CPU, all others are float32
Dtype = Literal["float32", "bfloat16", "float16", "int8", "packed"]
Quantization = Literal["none", "fp8"]  # of weights that a folder stores as floats, at load
# Also the forms that folders are stored in, with the names of vLLM and SGLang; they change nothing.
QuantizationFlag = Literal[
    "none",
    "fp8",
    "fbgemm_fp8",
    "compressed-tensors",
    "mxfp4",
    "gguf",
    "modelopt",
    "modelopt_fp8",
    "modelopt_fp4",
    "gptq",
    "gptq_marlin",
    "awq",
    "awq_marlin",
]
# auto: that of activations, and so are the wide types; fp8 is fp8_e4m3 (vLLM's names)
KVCacheDtype = Literal["auto", "bfloat16", "float16", "float32", "fp8", "fp8_e4m3", "fp8_e5m2"]
KVDtype = Literal["auto", "bfloat16", "float16", "float32", "fp8_e4m3", "fp8_e5m2"]
Executor = Literal["eager", "graph", "breakable", "tape"]
Arithmetic = Literal["fast", "fixed"]  # fixed: the bits of a row depend on its text only
DRAFT_ARITHMETIC: Arithmetic = "fast"  # drafts never change a token, whatever their bits
CaptureTime = Literal["lazy", "at start"]
RankBackend = Literal["mp", "ray"]  # vLLM's names
RoleMode = Literal["null", "prefill", "decode"]  # null: one engine does both, as in SGLang
TransferBackend = Literal["nixl", "tcp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The paged KV cache."""

    page_size: int | Auto = "auto"  # tokens, 1 to 256; auto: 16, or whole compressed blocks
    kv_tokens: int | Auto = "auto"  # capacity in tokens; auto: what fits in memory
    prefix: bool = True  # share the KV of equal prefixes between requests
    # Of models with row state: copies that the prefix cache can continue from. auto: those that fit
    # into a fifth of the memory for KV
    row_snapshots: int | Auto = "auto"
    # Of models with sliding windows: tokens that the layers with a window have room for, of all
    # requests together. auto: what rows can need, if that leaves enough to the other layers
    window_tokens: int | Auto = "auto"
    kv_dtype: KVCacheDtype = "auto"  # in which keys and values are stored
    memory_share: float = 0.9  # of a GPU's memory, for everything that the engine allocates


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """How much work runs or waits at the same time."""

    context: int | Auto = "auto"  # prompt and output of one request; auto: the model's own
    rows: int | Auto = "auto"  # requests that run at the same time
    # Query tokens of one step. Drafts come first; prompts are cut into chunks that fit the rest.
    step_tokens: int | Auto = "auto"
    queued: int = 1024  # requests that may wait


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionConfig:
    """How steps are run."""

    executor: Executor | Auto = "auto"
    depth: int | Auto = "auto"  # steps in flight while the next is planned: 0 waits, 1 overlaps
    record: CaptureTime | Auto = "auto"  # when graphs are captured; auto: lazy, a server at start
    deterministic: bool = True  # on a GPU, the bits of a row depend on its text only


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesConfig:
    """The machines that compute one model. Each runs the same number of ranks."""

    num: int = 1
    rank: int = 0  # of this machine; machine 0 serves
    address: str = ""  # HOST:PORT of machine 0, by which the others find it
    timeout_s: float = 300.0  # for a machine that has not come
    backend: RankBackend = "mp"  # what starts the processes of ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """How many processes compute the model, and how long they wait for each other."""

    tensor: int = 1  # ranks that share every layer
    data: int = 1  # ranks with requests of their own
    is_expert_parallel: bool = False  # every rank holds some of the experts, whole
    timeout_s: float = 15.0  # without a sign of life of a rank, before the group is ended
    nodes: NodesConfig = NodesConfig()
    num_sharing: int = 1  # ranks on one device; set where ranks are started


@dataclass(frozen=True, slots=True, kw_only=True)
class DisaggregationConfig:
    """Which part of a request an engine computes, and how KV comes from one part to the other."""

    mode: RoleMode = "null"
    host: str = "127.0.0.1"  # where a prefill engine listens for decode engines
    advertised_host: str = ""  # by which decode engines find it; empty: host, or its name
    port: int = 8998
    backend: TransferBackend = "nixl"
    lease_s: float = 30.0  # that offered KV waits for a sign of its reader
    stall_s: float = 5.0  # without an answer, after which a peer is given up
    deadline_s: float = 300.0  # of a whole transfer, the prefill included; SGLang's time


WHOLE_REQUESTS = DisaggregationConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """LoRA adapters of the target, which requests name. The names of the sizes are vLLM's."""

    is_enabled: bool = False
    for_drafts: bool = False  # of the draft head, too
    max_loras: int = 4  # adapters that can run in one step; others wait
    max_rank: int = 16  # of an adapter; memory is reserved for it
    modules: tuple[tuple[str, str], ...] = ()  # names and paths that a server starts with


def choose_executor(requested: Executor | Auto, *, is_eager: bool) -> Executor | Auto:
    """The executor of --executor, or eager if another engine's flag for eager was given."""
    if is_eager and requested not in ("auto", "eager"):
        raise ConfigError(
            f"--executor {requested} and --disable-cuda-graph (enforce_eager) choose the executor "
            "twice; keep one of them"
        )
    return "eager" if is_eager else requested


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All settings of an engine, besides the model's folder."""

    dtype: Dtype | Auto = "auto"
    quantization: QuantizationFlag = "none"
    device: str = "auto"  # "cpu", "cuda", "cuda:1", ...
    execution: ExecutionConfig = ExecutionConfig()
    attention: AttentionName = "auto"  # backend of the target
    cache: CacheConfig = CacheConfig()
    limits: LimitsConfig = LimitsConfig()
    parallel: ParallelConfig = ParallelConfig()
    disaggregation: DisaggregationConfig = WHOLE_REQUESTS
    kv_events: KVEventsConfig = NO_KV_EVENTS
    draft: DraftConfig = NO_DRAFT  # "auto" must be resolved by find_drafter first
    lora: LoraConfig = LoraConfig()
    has_tower: bool = True  # the vision tower is loaded, if the model has one that is supported
    tokenizer_folder: str = ""  # whose vocabulary grammars use; empty for the model's folder
