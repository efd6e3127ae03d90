"""Flags of vLLM and SGLang that have another name here, no effect, or no place."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerFlag:
    """What one of their flags is here."""

    means: Literal["ours", "nothing", "refused"]
    text: str  # our flag, or the reason
    has_value: bool = False
    has_more: bool = False  # further values may follow the first
    of_values: Mapping[str, "PeerFlag"] = field(default_factory=dict)  # values that mean otherwise


def _ours(text: str, *, has_value: bool = False, **of_values: PeerFlag) -> PeerFlag:
    """Our flags; the value is appended."""
    return PeerFlag(means="ours", text=text, has_value=has_value, of_values=of_values)


def _nothing(text: str, *, has_value: bool = False, has_more: bool = False) -> PeerFlag:
    return PeerFlag(means="nothing", text=text, has_value=has_value, has_more=has_more)


def _nothing_if(only: tuple[str, ...], text: str, otherwise: str) -> PeerFlag:
    """Some values change nothing, and all others are refused."""
    return _refused(otherwise, has_value=True, of_values=dict.fromkeys(only, _nothing(text)))


def _refused(
    text: str, *, has_value: bool = False, of_values: Mapping[str, PeerFlag] | None = None
) -> PeerFlag:
    return PeerFlag(means="refused", text=text, has_value=has_value, of_values=of_values or {})


_BOTH_KINDS = _refused(
    "one backend runs prompts and decoding, which share steps; use --attention-backend",
    has_value=True,
)
_IMAGE_ATTENTION = _refused("image encoders have one attention; omit the flag", has_value=True)
_MACHINES = "machines are named by --nnodes, --node-rank and --dist-init-addr"
_GRAPHS = "a step that repeats is captured; --disable-cuda-graph turns that off"
_SIZES = _refused(
    "the sizes of captured steps are chosen for the model and its drafter; omit the flag",
    has_value=True,
)
_WINDOWS = "the memory of layers with a sliding window is divided at start; --window-tokens sets it"
_EAGER = _ours("--enforce-eager")
_GRAPHS_BY_VALUE = PeerFlag(  # NONE: JSON that switches off all captures (peer_meaning.py)
    means="nothing", text=_GRAPHS, has_value=True, of_values={"NONE": _EAGER, "0": _EAGER}
)
_SNAPSHOTS = "row states are cached by snapshots; --row-snapshots sets how many"
_STATE_KERNELS = _nothing("recurrent layers have one kernel per device", has_value=True)
_HIDDEN_STATES = _ours("--enable-return-hidden-states")
_IN_TOKENS = _refused(
    "the size of the KV cache is given in tokens; use --kv-tokens, or --gpu-memory-utilization",
    has_value=True,
)
_NO_IMAGE_CACHE = _nothing(
    "the prefix cache knows images, and no other copy of them is kept", has_value=True
)
_EMBEDDINGS = _nothing("texts and embeddings of texts are served together", has_value=True)
_XGRAMMAR = _nothing("grammars are compiled by xgrammar", has_value=True)
_EXACT = _refused(
    "a draft is accepted only if the target itself chooses it; omit the flag", has_value=True
)
_STATE_TYPE = _refused("recurrent states are stored in float32; omit the flag", has_value=True)
_STATE_ROWS = _refused(
    "every running request has recurrent states of its own; use --max-num-seqs", has_value=True
)
_OWN_SEEDS = _nothing("every request has a seed of its own, given or random", has_value=True)

PEER_FLAGS: dict[str, PeerFlag] = {
    "--chunked-prefill-size": PeerFlag(
        means="ours",
        text="--max-num-batched-tokens",
        has_value=True,
        of_values={"-1": _refused("prompts are always read in chunks; give a size above 0")},
    ),
    "--disable-overlap-schedule": _ours("--depth 0"),
    "--async-scheduling": _ours("--depth 1", false=_ours("--depth 0")),
    "--disable-radix-cache": _ours("--no-enable-prefix-caching"),
    "--speculative-adaptive": _ours("--adaptive", false=_ours("--no-adaptive")),
    "--enable-deterministic-inference": _ours("--deterministic", false=_ours("--no-deterministic")),
    "--disable-log-requests": _ours("--no-access-log"),
    "--language-model-only": _ours("--limit-mm-per-prompt image=0"),
    "--limit-mm-data-per-request": _ours("--limit-mm-per-prompt", has_value=True),
    "--enable-priority-scheduling": _ours("--scheduling-policy priority"),
    "--sampling-defaults": _refused(
        "give model or openai",
        has_value=True,
        of_values={
            "model": _ours("--generation-config auto"),
            "openai": _ours("--generation-config vllm"),
        },
    ),
    "--return-hidden-states-mode": _refused(
        "give last or full",
        has_value=True,
        of_values={"last": _HIDDEN_STATES, "full": _HIDDEN_STATES},
    ),
    "--trust-remote-code": _nothing("code of a checkpoint is never run"),
    "--enable-chunked-prefill": _nothing("prompts are always read in chunks"),
    "--enable-mixed-chunk": _nothing("prompts and answers always share steps"),
    "--enable-multi-layer-eagle": _nothing("the draft modules of the checkpoint decide"),
    "--disable-piecewise-cuda-graph": _nothing(_GRAPHS),
    "--enable-piecewise-cuda-graph": _nothing(_GRAPHS),
    "--enforce-piecewise-cuda-graph": _nothing(_GRAPHS),
    "--enable-breakable-cuda-graph": _nothing(_GRAPHS),
    "--disable-prefill-cuda-graph": _nothing(_GRAPHS),
    "--disable-decode-cuda-graph": _nothing(_GRAPHS),
    "--disable-cuda-graph-padding": _nothing(_GRAPHS),
    "--compilation-config": _GRAPHS_BY_VALUE,
    "--optimization-level": _GRAPHS_BY_VALUE,
    "--cuda-graph-config": _GRAPHS_BY_VALUE,
    "--cuda-graph-backend-decode": _nothing(_GRAPHS, has_value=True),
    "--cuda-graph-backend-prefill": _nothing(_GRAPHS, has_value=True),
    "--max-cudagraph-capture-size": _nothing(_GRAPHS, has_value=True),
    "--cuda-graph-max-bs": _nothing(_GRAPHS, has_value=True),
    "--cuda-graph-max-bs-decode": _nothing(_GRAPHS, has_value=True),
    "--cuda-graph-max-bs-prefill": _nothing(_GRAPHS, has_value=True),
    "--piecewise-cuda-graph-max-tokens": _nothing(_GRAPHS, has_value=True),
    "--max-seq-len-to-capture": _nothing(_GRAPHS, has_value=True),
    "--enable-metrics": _nothing("/metrics is always there"),
    "--disable-log-stats": _nothing("there is a status line only while requests run"),
    "--skip-server-warmup": _nothing("the server takes requests when all shapes are captured"),
    "--speculative-attention-mode": _nothing(
        "one backend runs prompts and decoding, and drafts are both", has_value=True
    ),
    "--sampling-backend": _nothing("there is one sampler, with equal draws", has_value=True),
    "--grammar-backend": _XGRAMMAR,
    "--guided-decoding-backend": _XGRAMMAR,
    "--runner": _EMBEDDINGS,
    "--convert": _EMBEDDINGS,
    "--task": _EMBEDDINGS,
    "--enable-multimodal": _nothing("images are read where the model can"),
    "--mm-processor-cache-gb": _NO_IMAGE_CACHE,
    "--mm-processor-cache-type": _NO_IMAGE_CACHE,
    "--mamba-radix-cache-strategy": _nothing(_SNAPSHOTS, has_value=True),
    "--mamba-track-interval": _nothing(_SNAPSHOTS, has_value=True),
    "--mamba-cache-mode": PeerFlag(
        means="nothing",
        text=_SNAPSHOTS,
        has_value=True,
        of_values={"none": _ours("--row-snapshots 0")},
    ),
    "--linear-attn-backend": _STATE_KERNELS,
    "--linear-attn-decode-backend": _STATE_KERNELS,
    "--linear-attn-prefill-backend": _STATE_KERNELS,
    "--linear-attn-verify-backend": _STATE_KERNELS,
    "--mamba-backend": _STATE_KERNELS,
    "--enable-sleep-mode": _nothing("every model can sleep"),
    "--enable-memory-saver": _nothing("every model can sleep"),
    "--seed": _OWN_SEEDS,
    "--random-seed": _OWN_SEEDS,
    "--disable-hybrid-kv-cache-manager": _nothing(_WINDOWS),
    "--disable-hybrid-swa-memory": _nothing(_WINDOWS),
    "--swa-full-tokens-ratio": _nothing(_WINDOWS, has_value=True),
    "--load-format": _nothing_if(
        ("auto", "safetensors", "hf", "gguf"),
        "weights are safetensors or GGUF files",
        "weights are read from safetensors or GGUF files; convert them, or use --load-format auto",
    ),
    "--max-cpu-loras": _nothing(
        "an adapter without a place in a step is read from its folder again", has_value=True
    ),
    "--lora-backend": _nothing("adapters have one kernel per device", has_value=True),
    "--lora-target-modules": _nothing(
        "the folder of an adapter names its modules, and any projection can have one",
        has_value=True,
        has_more=True,
    ),
    "--moe-runner-backend": _nothing("experts have one kernel per device", has_value=True),
    "--max-prefill-tokens": _nothing(
        "prompts are cut into chunks that fit --max-num-batched-tokens", has_value=True
    ),
    "--schedule-policy": _nothing_if(
        ("fcfs",),
        "requests run in the order of arrival",
        "requests run in the order of arrival, or by --scheduling-policy priority",
    ),
    "--speculative-draft-model-quantization": _nothing_if(
        ("unquant",),
        "draft models and heads are loaded as they are stored",
        "draft models and heads are loaded as they are stored; use a quantised draft folder",
    ),
    "--mm-processor-kwargs": _refused(
        "images are read as preprocessor_config.json says; change that file in a copy of the model",
        has_value=True,
    ),
    "--hf-overrides": _refused(
        "config.json is read as it is; change that file in a copy of the model", has_value=True
    ),
    "--calculate-kv-scales": _refused(
        "scales of keys and values come from the checkpoint, and are 1 without; omit the flag"
    ),
    "--prefill-attention-backend": _BOTH_KINDS,
    "--decode-attention-backend": _BOTH_KINDS,
    "--attention-config": _refused("use --attention-backend with a name", has_value=True),
    "--mm-attention-backend": _IMAGE_ATTENTION,
    "--mm-encoder-attn-backend": _IMAGE_ATTENTION,
    "--enable-mm-embeds": _refused(
        "embeddings of images are no part of messages; send a whole prompt as embeddings, with "
        "--enable-prompt-embeds"
    ),
    "--kv-cache-memory-bytes": _IN_TOKENS,
    "--num-gpu-blocks-override": _IN_TOKENS,
    "--kv-transfer-config": _refused("roles are chosen by --disaggregation-mode", has_value=True),
    "--headless": _refused(_MACHINES),
    "--master-addr": _refused(_MACHINES, has_value=True),
    "--speculative-adaptive-config": _refused(
        "adaptive drafting measures what drafts cost and gain; omit the flag, or use --no-adaptive",
        has_value=True,
    ),
    "--cuda-graph-bs": _SIZES,
    "--cuda-graph-bs-decode": _SIZES,
    "--cuda-graph-bs-prefill": _SIZES,
    "--piecewise-cuda-graph-tokens": _SIZES,
    "--cudagraph-capture-sizes": _SIZES,
    "--enable-two-batch-overlap": _refused("steps overlap with planning alone; use --depth 1"),
    "--speculative-accept-threshold-single": _EXACT,
    "--speculative-accept-threshold-acc": _EXACT,
    "--speculative-token-map": _refused(
        "the folder of a head has its own map of tokens; omit the flag", has_value=True
    ),
    "--speculative-draft-model-revision": _refused(
        "a draft model comes from its main branch; download another one and give its folder",
        has_value=True,
    ),
    "--disable-sliding-window": _refused(
        "windows are a part of the model; use --max-context with the size of the window"
    ),
    "--mamba-ssm-dtype": _STATE_TYPE,
    "--mamba-cache-dtype": _STATE_TYPE,
    "--mamba-ssm-cache-dtype": _STATE_TYPE,
    "--max-mamba-cache-size": _STATE_ROWS,
    "--mamba-full-memory-ratio": _STATE_ROWS,
    "--pipeline-parallel-size": _refused(
        "layers are not divided over processes; use --tensor-parallel-size", has_value=True
    ),
    "--pp-size": _refused(
        "layers are not divided over processes; use --tensor-parallel-size", has_value=True
    ),
    "--enable-torch-compile": _refused("kernels are written by hand and captured; omit the flag"),
    "--cpu-offload-gb": _refused(
        "weights stay on the device; use --quantization fp8, or a quantised checkpoint",
        has_value=True,
    ),
    "--enable-hierarchical-cache": _refused("KV is cached on the device alone; omit the flag"),
}
