"""A kernel that computes masses only, to compare them with the reference one by one."""

import torch
import triton
import triton.language as tl

from outrider.ops.sampling.thresholds_triton import mass_of


@triton.jit
def _mass_kernel(scores, temperatures, masses, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    z = tl.load(scores + row * width + columns, mask=inside, other=float("-inf"))
    mass = mass_of(z, tl.max(z, 0), tl.load(temperatures + row))
    tl.store(masses + row * width + columns, mass, mask=inside)


def masses_of(scores, temperatures):
    """Masses of float32 scores [n, vocab] at a temperature [n] each, as the kernels weigh them."""
    masses = torch.empty(scores.shape, dtype=torch.int64, device=scores.device)
    block = triton.next_power_of_2(scores.shape[1])
    _mass_kernel[(scores.shape[0],)](
        scores, temperatures, masses, scores.shape[1], BLOCK=block, enable_fp_fusion=False
    )
    return masses
