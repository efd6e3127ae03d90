"""Which attention backend runs on which device."""

from collections.abc import Sequence
from importlib.util import find_spec

import torch

from outrider.config.attention_choice import AttentionName
from outrider.errors import ConfigError
from outrider.kv.head_shape import HeadShape
from outrider.kv.per_layer_attention import PerLayerAttention
from outrider.kv.reference_attention import ReferenceAttention
from outrider.ops.compiled.why_not_compiled import why_not_compiled
from outrider.step.attention_backend import AttentionBackend

_COMPILED = "outrider.kv.compiled_attention"


def choose_attention(
    name: AttentionName,  # one that runs on the device: `resolve_attention` refuses others
    device: torch.device,
    *,
    page_size: int,
    dtype: torch.dtype,
    users: Sequence[HeadShape],
) -> AttentionBackend:
    """The backend of this name for the models of a role."""
    if name == "per_layer":
        usual = choose_attention("auto", device, page_size=page_size, dtype=dtype, users=users)
        return PerLayerAttention(usual, page_size=page_size)
    if device.type != "cuda":
        has_latents = any(user.is_latent for user in users)
        return _cpu_attention(name, page_size=page_size, dtype=dtype, has_latents=has_latents)
    if find_spec("triton") is None:
        raise ConfigError("a CUDA device needs Triton; pip install triton, or use --device cpu")
    from outrider.kv.triton_attention import TritonAttention  # its kernels import Triton

    return TritonAttention(page_size=page_size, users=users)


def _cpu_attention(
    name: AttentionName, *, page_size: int, dtype: torch.dtype, has_latents: bool
) -> AttentionBackend:
    reason = "" if name == "reference" else _why_not_compiled(dtype)
    if name == "compiled" and reason:
        raise ConfigError(f"the attention backend compiled cannot run: {reason}; use reference")
    if name == "reference" or reason:
        return ReferenceAttention(page_size=page_size, dtype=dtype)
    from outrider.kv.compiled_attention import CompiledAttention  # its loops import numba

    return CompiledAttention(page_size=page_size, dtype=dtype, has_latents=has_latents)


def _why_not_compiled(dtype: torch.dtype) -> str:
    if dtype != torch.float32:
        return f"it reads keys and values in float32, and activations are {dtype}"
    return why_not_compiled(_COMPILED)
