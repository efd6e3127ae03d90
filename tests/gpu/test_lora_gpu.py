"""The LoRA kernels, compiled: near a float64 product, with bits that ignore the other rows."""

import pytest
import torch
from support.lora_cases import SHAPES, lora_operands, lora_oracle, moved

pytest.importorskip("triton")
from outrider.ops.linear.lora import add_lora_, sorted_slots

REAL = [(1, 4096, 48, 6144), (33, 4096, 32, 28672), (70, 14336, 16, 4096), (300, 576, 48, 960)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [*SHAPES, *REAL])
def test_every_row_gets_the_product_of_its_own_adapter(shape, dtype):
    out, x, rows, stack = lora_operands(*shape, device="cuda", dtype=dtype)
    right = lora_oracle(out, x, rows, stack)
    add_lora_(out, x, rows, stack)
    eps = torch.finfo(dtype).eps
    # The kernel sums up to 512 products one after another, whose rounding errors add up at random.
    sums = 512**0.5 * torch.finfo(torch.float32).eps
    torch.testing.assert_close(out.double(), right, rtol=2 * eps, atol=8 * eps + sums)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bits_of_a_row_depend_on_that_row_and_its_adapter(dtype):
    before, x, rows, stack = lora_operands(70, 4096, 48, 6144, device="cuda", dtype=dtype)
    whole = before.clone()
    add_lora_(whole, x, rows, stack)
    to = torch.tensor([0, 2, 3, 1], device="cuda")
    swapped = before.clone()
    add_lora_(swapped, x, sorted_slots(to[rows.slots]), moved(stack, [0, 3, 1, 2]))
    assert torch.equal(swapped, whole)
    for count in (1, 16, 17, 33):
        own = before[:count].clone()
        add_lora_(own, x[:count], sorted_slots(rows.slots[:count]), stack)
        assert torch.equal(own, whole[:count]), count


def test_a_captured_graph_follows_slots_and_matrices():
    before, x, rows, stack = lora_operands(33, 512, 32, 640, device="cuda", dtype=torch.bfloat16)
    slots, out = rows.slots.clone(), before.clone()
    graph = torch.cuda.CUDAGraph()
    add_lora_(out, x, sorted_slots(slots), stack)  # compiles
    with torch.cuda.graph(graph):
        out.copy_(before)
        add_lora_(out, x, sorted_slots(slots), stack)
    slots.copy_(slots.flip(0))
    stack.a[1].neg_()
    graph.replay()
    expected = before.clone()
    add_lora_(expected, x, sorted_slots(slots), stack)
    assert torch.equal(out, expected)
