"""LoRA of every row's adapter: the reference and the interpreted kernel. tests/gpu compiles it."""

import json
import os
import subprocess
import sys

import pytest
import torch
from support.linear_cases import operands
from support.lora_cases import SHAPES, lora_operands, lora_oracle, moved

from outrider.ops.linear.choose_linear import choose_linear
from outrider.ops.linear.lora import (
    AdaptedLinear,
    StepSlots,
    add_lora_reference_,
    sorted_slots,
)

pytest.importorskip("triton")
from outrider.ops.linear.lora_triton import add_lora_triton_

CPU = torch.device("cpu")


def by_reference(out, x, rows, stack):
    add_lora_reference_(out, x, rows.slots, stack)


def by_kernel(out, x, rows, stack):
    add_lora_triton_(out, x, rows.slots, rows.order, stack.a, stack.b)


FORMS = pytest.mark.parametrize("add", [by_reference, by_kernel])


@pytest.mark.fast_cases(4)
@FORMS
@pytest.mark.parametrize("shape", SHAPES)
def test_every_row_gets_the_product_of_its_own_adapter(add, shape):
    out, x, rows, stack = lora_operands(*shape)
    right = lora_oracle(out, x, rows, stack)
    plain = out.clone()
    add(out, x, rows, stack)
    torch.testing.assert_close(out.double(), right, rtol=1e-5, atol=1e-5)
    assert torch.equal(out[rows.slots == 0], plain[rows.slots == 0])


@FORMS
def test_the_bits_of_a_row_depend_on_that_row_and_its_adapter(add):
    before, x, rows, stack = lora_operands(18, 530, 16, 64)
    whole = before.clone()
    add(whole, x, rows, stack)
    swapped, places = before.clone(), [0, 3, 1, 2]  # slot 1 goes to 2, 2 to 3, 3 to 1
    to = torch.tensor([0, 2, 3, 1])
    add(swapped, x, sorted_slots(to[rows.slots]), moved(stack, places))
    assert torch.equal(swapped, whole)
    for row in (0, 17):
        own = before[row : row + 1].clone()
        add(own, x[row : row + 1], sorted_slots(rows.slots[row : row + 1]), stack)
        assert torch.equal(own[0], whole[row]), row


@FORMS
def test_values_of_other_rows_that_are_not_finite_stay_theirs(add):
    out, x, rows, stack = lora_operands(5, 40, 6, 33)
    right = lora_oracle(out, x, rows, stack)
    x[2] = float("nan")
    add(out, x, rows, stack)
    others = [row for row in range(5) if row != 2]
    torch.testing.assert_close(out[others].double(), right[others], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", pytest.param("int8", marks=pytest.mark.slow)]
)
def test_layers_of_every_weight_type_take_adapters(dtype):
    before, x, rows, stack = lora_operands(6, 64, 8, 48)
    linear = choose_linear(dtype, CPU)(operands(1, 48, 64, dtype=torch.float32)[1])
    slots = StepSlots()
    adapted = AdaptedLinear(linear, stack, slots)
    assert torch.equal(adapted(x), linear(x))  # a step without adapters
    slots.current = rows
    close = {"rtol": 1e-5, "atol": 1e-5}
    right = lora_oracle(linear(x), x, rows, stack)
    torch.testing.assert_close(adapted(x).double(), right, **close)
    right = lora_oracle(linear.plus(x, before.clone()), x, rows, stack)
    torch.testing.assert_close(adapted.plus(x, before.clone()).double(), right, **close)


@pytest.mark.slow
def test_the_kernels_compile_for_a_hopper_without_spills():
    # A process of its own, because kernels are interpreted in this one.
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", "support.hopper_lora"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    kernels = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["spilled_bytes"] for each in kernels] == [0, 0, 0, 0]
