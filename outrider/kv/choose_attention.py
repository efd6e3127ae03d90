"""Which attention backend runs on which device."""

from collections.abc import Sequence
from importlib.util import find_spec

import torch

from outrider.errors import ConfigError
from outrider.kv.head_shape import HeadShape
from outrider.kv.reference_attention import ReferenceAttention
from outrider.ops.compiled.why_not_compiled import why_not_compiled
from outrider.step.attention_backend import AttentionBackend


def choose_attention(
    device: torch.device,
    *,
    page_size: int,
    dtype: torch.dtype,
    users: Sequence[HeadShape],
) -> AttentionBackend:
    """The backend for all models of an engine: the target, and what drafts for it."""
    if device.type != "cuda":
        return _cpu_attention(page_size=page_size, dtype=dtype)
    if find_spec("triton") is None:
        raise ConfigError("a CUDA device needs Triton; pip install triton, or use --device cpu")
    from outrider.kv.triton_attention import TritonAttention  # its kernels import Triton

    return TritonAttention(page_size=page_size, users=users)


def _cpu_attention(*, page_size: int, dtype: torch.dtype) -> AttentionBackend:
    if dtype != torch.float32 or why_not_compiled("outrider.ops.attention.attend_in_place"):
        return ReferenceAttention(page_size=page_size, dtype=dtype)
    from outrider.kv.compiled_attention import CompiledAttention  # its loops import numba

    return CompiledAttention(page_size=page_size, dtype=dtype)
