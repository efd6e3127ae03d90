"""Cases of the LoRA operation that hold on any device."""

from dataclasses import replace

import torch

from outrider.ops.linear.lora import LoraStack, sorted_slots

SHAPES = [  # rows, inputs, rank, outputs
    (1, 64, 16, 64),
    (5, 40, 6, 33),
    (18, 530, 20, 130),  # two slices of the inputs, two tiles of rows
    (37, 96, 48, 70),
]


def lora_operands(rows, inputs, rank, outputs, *, slots=4, device="cpu", dtype=torch.float32):
    """Outputs before, activations, slots of rows (0 for some) and matrices; slot 0 is zeros."""
    generator = torch.Generator().manual_seed(rows)
    out = torch.randn(rows, outputs, generator=generator)
    x = torch.randn(rows, inputs, generator=generator)
    a = torch.randn(slots, rank, inputs, generator=generator) * inputs**-0.5
    b = torch.randn(slots, outputs, rank, generator=generator) * rank**-0.5
    a[0], b[0] = 0.0, 0.0
    own = torch.randint(slots, (rows,), generator=generator).to(device)
    out, x, a, b = (each.to(device, dtype) for each in (out, x, a, b))
    return out, x, sorted_slots(own), LoraStack(a=a, b=b)


def lora_oracle(out, x, rows, stack):
    """Row by row in float64."""
    total = out.double()
    for row, slot in enumerate(rows.slots.tolist()):
        total[row] += stack.b[slot].double() @ (stack.a[slot].double() @ x[row].double())
    return total


def moved(stack: LoraStack, places: list[int]) -> LoraStack:
    """The same matrices in other slots."""
    return replace(stack, a=stack.a[places].contiguous(), b=stack.b[places].contiguous())
