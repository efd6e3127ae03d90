"""`rotation_at` on a CPU in float32, in one compiled call instead of five small operations."""

import torch

from outrider.ops.compiled.rotation_rows import rotation_of_rows
from outrider.ops.compiled.thread_team import run_alone, run_team
from outrider.ops.graph_break import graph_break
from outrider.ops.norm_rope.rotary import RotaryFrequencies, Rotation

_FUNCTION = int(rotation_of_rows.address)
_FEW = 64  # positions that one thread computes before another has begun


def rotation_at_compiled(positions: torch.Tensor, frequencies: RotaryFrequencies) -> Rotation:
    cos, sin = torch.empty(2, positions.shape[0], 1, frequencies.radians.shape[0])
    graph_break(_run, positions.contiguous(), frequencies, cos, sin)
    return Rotation(cos, sin)


def _run(
    positions: torch.Tensor, frequencies: RotaryFrequencies, cos: torch.Tensor, sin: torch.Tensor
) -> None:
    num, _, dim = cos.shape
    tensors = positions, frequencies.radians, frequencies.signs, cos, sin
    run = run_alone if num <= _FEW else run_team
    run(_FUNCTION, (num, dim, *(tensor.data_ptr() for tensor in tensors)))
