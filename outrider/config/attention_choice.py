"""Which attention backend runs which model: their names, and what the host knows when they plan."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from outrider.errors import ConfigError

AttentionName = Literal["auto", "triton", "compiled", "reference", "per_layer"]
Role = Literal["target", "draft"]
RowKind = Literal["decode", "chunk"]

TARGET_FLAG = "--attention-backend / attention_backend"
DRAFT_FLAG = "--speculative-draft-attention-backend / speculative_draft_attention_backend"

# Devices that each backend runs on.
DEVICES: dict[AttentionName, tuple[str, ...]] = {
    "auto": ("cuda", "cpu"),
    "triton": ("cuda",),
    "compiled": ("cpu",),
    "reference": ("cpu",),
    "per_layer": ("cuda", "cpu"),
}

# Names of vLLM and SGLang for what is here, too.
SAME: dict[str, AttentionName] = {
    "triton_attn": "triton",
    "triton_mla": "triton",
    "torch_native": "reference",
    "torch_sdpa": "reference",
    "cpu_attn": "compiled",
    "cpu_mla": "compiled",
    "dsv4": "auto",  # DeepSeek-V4 has an attention of its own, whatever runs other models
    "compressed": "auto",
}

_NEEDS_LENGTHS = (
    "it plans every step on the host, from the lengths of all rows. While steps overlap, these are "
    "on the device alone, and there is no adapter that runs without overlap (docs/attention.md)"
)
_NOT_OURS = (
    "its kernels are not part of Outrider, whose own give a token the same bits in every batch and "
    "draft tree"
)
# Backends of vLLM and SGLang that are refused, and why.
REFUSED: dict[str, str] = {
    **dict.fromkeys(("flashinfer", "flashinfer_mla"), _NEEDS_LENGTHS),
    **dict.fromkeys(
        (
            "fa2", "fa3", "fa4", "flash_attn", "flash_attn_mla", "flashmla", "flashmla_sparse",
            "cutlass_mla", "trtllm_mla", "trtllm_mha", "flex_attention", "tree_attn", "xformers",
            "dual_chunk_flash_attn", "nsa", "dsa", "aiter", "wave", "intel_amx", "intel_xpu",
            "ascend", "cutedsl_mla", "tokenspeed_mla", "hpc_ops", "hpc_attn", "turboquant",
            "flash_attn_diffkv", "triton_attn_diffkv", "flash_attn_mla_sparse", "amx_mla",
            "flashinfer_mla_sparse", "flashinfer_mla_sparse_sm120", "flashinfer_mla_sparse_dsv4",
            "flashmla_sparse_dsv4", "rocm_flashmla_sparse_dsv4", "minimax_m3_sparse",
            "cutlass_msa", "triton_msa", "xpu_mla_sparse", "rocm_attn", "rocm_aiter_fa",
            "rocm_aiter_unified_attn", "rocm_aiter_mla", "rocm_aiter_triton_mla",
            "rocm_aiter_mla_sparse",
        ),
        _NOT_OURS,
    ),
}  # fmt: skip

# Whether the host knows the lengths of rows when it plans a step, by depth. With depth 1 the result
# of the step before has not come: how many drafts were accepted is on the device alone. How much of
# a prompt was computed is always known.
HOST_LENGTHS: dict[tuple[Role, RowKind], Mapping[int, bool]] = {
    ("target", "decode"): {0: True, 1: False},
    ("target", "chunk"): {0: True, 1: True},
    ("draft", "decode"): {0: True, 1: False},
    ("draft", "chunk"): {0: True, 1: True},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionChoice:
    """The backend of each role; auto is the best for the device and the type of activations."""

    target: AttentionName = "auto"
    draft: AttentionName = "auto"


USUAL_ATTENTION = AttentionChoice()


def parse_attention(name: str, flag: str) -> AttentionName:
    """The backend by a name of ours, vLLM's or SGLang's, which differ in capitals."""
    if not isinstance(name, str):
        raise ConfigError(f"{flag} must be a name, got {name!r}")
    lower = name.lower()
    known: dict[str, AttentionName] = {each: each for each in get_args(AttentionName)} | SAME
    if lower in known:
        return known[lower]
    reason = REFUSED.get(lower, "there is no such backend")
    raise ConfigError(f"{flag} {name}: {reason}; use one of {', '.join(get_args(AttentionName))}")


def resolve_attention(
    *, target: AttentionName, draft: AttentionName, on_cpu: bool
) -> AttentionChoice:
    """The backend of each role: a drafter has that of the target unless it is given another.

    Refuses backends of another device.
    """
    device = "cpu" if on_cpu else "cuda"
    choice = AttentionChoice(target=target, draft=target if draft == "auto" else draft)
    for flag, name in ((TARGET_FLAG, choice.target), (DRAFT_FLAG, choice.draft)):
        if device not in DEVICES[name]:
            here = ", ".join(each for each, devices in DEVICES.items() if device in devices)
            raise ConfigError(f"{flag} {name} does not run on {device}; use one of {here}")
    return choice


def host_knows_lengths(role: Role, depth: int) -> bool:
    """Whether the host knows the lengths of all rows that this role may run in a step."""
    return all(known[depth] for (each, _), known in HOST_LENGTHS.items() if each == role)
