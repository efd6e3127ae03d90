"""Root-mean-square normalisation over the last axis. `make_norm` chooses the form at load."""

from typing import Protocol

import torch
import torch.nn.functional as F

from outrider.ops.compiled.why_not_compiled import why_not_compiled
from outrider.ops.graph_break import graph_break

_SMALL = 1 << 15  # numbers that one thread normalises before another has begun


class Norm(Protocol):
    """Scales every vector to unit root mean square, then each element by its weight."""

    weight: torch.Tensor  # [..., dim]
    eps: float  # added to the mean square

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...  # [..., dim] both


class RmsNorm:
    """The portable form: `rms_norm_reference`."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:  # weight [..., dim]
        self.weight = weight
        self.eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm_reference(x, self.weight, self.eps)


class KernelNorm:
    """RMS norm in one kernel, on CUDA."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:  # weight [..., dim]
        from outrider.ops.norm_rope.rms_norm_triton import rms_norm_triton  # a CPU has no Triton

        self.weight = weight
        self.eps = eps
        self._kernel = rms_norm_triton

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._kernel(x, self.weight, self.eps)


class NormLater:
    """No norm: returns its input. The layer behind it normalises, or the input needs no norm."""

    def __init__(self, weight: torch.Tensor) -> None:  # on the device of the vectors
        self.weight = weight[:0]
        self.eps = 0.0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x


class LengthNorm:
    """RMS norm by Euclidean length: in float32 on a CPU, half the time of the portable form.

    With d = dim:  x / sqrt(|x|^2 / d + eps)  =  sqrt(d) x / hypot(|x|, sqrt(d eps))
    """

    def __init__(self, weight: torch.Tensor, eps: float) -> None:  # weight [..., dim]
        dim = weight.shape[-1]
        self.weight = weight
        self.eps = eps
        self._scaled_weight = weight * dim**0.5
        self._floor = torch.tensor((dim * eps) ** 0.5)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        length: torch.Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return (x / length.hypot_(self._floor)).mul_(self._scaled_weight)


class CompiledNorm:
    """RMS norm in one compiled call: in float32 on a CPU, a third of the time for few vectors."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:  # weight [..., dim]
        from outrider.ops.compiled.norm_rows import norm_rows
        from outrider.ops.compiled.thread_team import run_alone, run_team

        self.weight = weight
        self.eps = eps
        self._with_eps = with_eps(weight, eps)
        self._function = int(norm_rows.address)
        self._run_alone, self._run_team = run_alone, run_team

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        graph_break(self._run, x, out)
        return out

    def _run(self, x: torch.Tensor, out: torch.Tensor) -> None:
        dim, size = self.weight.shape[-1], x.numel()
        run = self._run_alone if size < _SMALL else self._run_team
        operands = x.data_ptr(), self._with_eps.data_ptr(), out.data_ptr()
        run(self._function, (size // dim, dim, self.weight.numel() // dim, *operands))


def with_eps(weight: torch.Tensor, eps: float) -> torch.Tensor:  # [..., dim] -> [n + 1]
    """A norm as compiled functions read it; [1] where nothing is normalised."""
    return torch.cat([weight.flatten(), torch.tensor([eps])])


def make_norm(weight: torch.Tensor, eps: float) -> Norm:  # weight [..., dim]
    """The fastest form that is exact on the weight's device."""
    if weight.is_cuda:
        return KernelNorm(weight, eps)
    if weight.device.type == "cpu" and weight.dtype == torch.float32:
        if why_not_compiled("outrider.ops.compiled.norm_rows"):
            return LengthNorm(weight, eps)
        return CompiledNorm(weight, eps)
    return RmsNorm(weight, eps)


def widest_norm_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """The widest type of a norm's weight for activations of `dtype`: the kernel takes float32."""
    return torch.float32 if device.type == "cuda" else dtype


def rms_norm_reference(
    x: torch.Tensor,  # [..., dim]
    weight: torch.Tensor,  # [..., dim]
    eps: float,
) -> torch.Tensor:  # [..., dim]
    """Every vector scaled to unit root mean square, then by its weight.

    The mean is taken in float32 whatever the type of `x`.
    """
    return F.rms_norm(x, x.shape[-1:], eps=eps) * weight
