"""Cases of the linear kernels that hold on any device."""

import torch

SHAPES = [  # rows, outputs, inputs
    (1, 64, 64),
    (3, 40, 96),
    (17, 65, 130),
    (40, 32, 64),
    (70, 33, 32),
]


def operands(rows, outputs, inputs, *, device="cpu", dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inputs, generator=generator)
    weight = torch.randn(outputs, inputs, generator=generator) * inputs**-0.5
    residual = torch.randn(rows, outputs, generator=generator)
    return tuple(t.to(device, dtype) for t in (x, weight, residual))
