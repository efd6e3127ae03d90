"""SwiGLU of a fused gate and up projection: silu(gate) * up."""

import math

import torch

from outrider.ops.fixed_activations import silu


def swiglu(
    gate_up: torch.Tensor,  # [n, 2 * intermediate] gate, then up
    limit: float = math.inf,
) -> torch.Tensor:  # [n, intermediate]
    """silu(gate) * up; gates are clamped to at most `limit`, ups to [-limit, limit]."""
    if gate_up.is_cuda:
        from outrider.ops.linear.swiglu_triton import swiglu_triton  # a CPU has no Triton

        return swiglu_triton(gate_up, limit)
    return swiglu_reference(gate_up, limit)


def swiglu_reference(gate_up: torch.Tensor, limit: float = math.inf) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    if limit < math.inf:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return silu(gate).mul_(up)
