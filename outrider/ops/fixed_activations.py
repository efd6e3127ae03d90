"""Activations and soft-capping. On a CPU an element has the same bits wherever it is in a tensor.

torch computes 32 float32 elements at a time, and what remains one by one, by another formula. The
remainder depends on how many elements there are, and on how threads share them. `exp`, `log` and
division have no such difference (measured: docs/lab/log.md).
"""

import math

import torch
import torch.nn.functional as F

_VECTOR = 32  # elements that torch computes at a time; 16 without AVX-512
_SHARE = 32768  # elements that torch gives to a thread at least
_GELU = -2.0 * math.sqrt(2.0 / math.pi)
_LINEAR_FROM = 20.0  # above this softplus is its input


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """1 / (1 + exp(-x))"""
    if _has_one_formula(x):
        return torch.sigmoid(x)
    return torch.exp(-x).add(1.0).reciprocal()


def softplus(x: torch.Tensor) -> torch.Tensor:
    """log(1 + exp(x))"""
    if _has_one_formula(x):
        return F.softplus(x)
    return torch.where(x > _LINEAR_FROM, x, x.exp().add(1.0).log())


def soft_cap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """cap * tanh(x / cap), the same formula as in the attention kernels."""
    doubled = (x * (2.0 / cap)).exp()
    return cap - (2.0 * cap) / doubled.add_(1.0)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """GELU with its approximation by a hyperbolic tangent: x * sigmoid(y), y a cubic of x."""
    if _has_one_formula(x):
        return F.gelu(x, approximate="tanh")
    cubic = x * x * x * 0.044715 + x
    return x / torch.exp(cubic * _GELU).add_(1.0)


def silu(x: torch.Tensor) -> torch.Tensor:  # [..., n] both
    """x * sigmoid(x)"""
    if _has_one_formula(x):
        return F.silu(x)
    if x.ndim != 2 or x.shape[1] % _VECTOR:
        return x / torch.exp(-x).add(1.0)
    parts = torch.split(x, _whole_vectors(*x.shape)) if len(x) else (x,)
    return F.silu(x) if len(parts) == 1 else torch.cat([F.silu(part) for part in parts])


def _has_one_formula(x: torch.Tensor) -> bool:
    return x.device.type != "cpu" or x.dtype != torch.float32


def _whole_vectors(rows: int, dim: int) -> list[int]:
    """Parts of the rows in which every thread gets whole vectors; mostly one part."""
    parts, threads = [], torch.get_num_threads()
    while rows:
        part = next(n for n in range(rows, 0, -1) if n == 1 or _is_whole(n * dim, threads))
        parts.append(part)
        rows -= part
    return parts


def _is_whole(num: int, threads: int) -> bool:
    shares = min(threads, -(-num // _SHARE))
    return -(-num // shares) % _VECTOR == 0
