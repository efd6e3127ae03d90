"""Compiled products of dense weights: the bits of an output depend on its row and column alone."""

import os
import subprocess
import sys

import pytest
import torch
from support.torch_threads import torch_threads

from outrider.ops.compiled.why_not_compiled import why_not_compiled
from outrider.ops.linear.choose_linear import choose_linear, computed_dtype, stored_dtype
from outrider.ops.linear.dense_linear import DenseLinear
from outrider.ops.linear.fixed_product import fixed_product, multiply_fixed
from outrider.ops.linear.tiled_weight import tile_weight

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def one_by_one(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # [n, in], [out, in]
    """Multiply-adds in the order of inputs: float64 holds a product exactly, and most sums."""
    total = torch.zeros(len(x), len(weight))
    for place in range(x.shape[1]):
        product = x[:, place, None].double() * weight[:, place].double()
        total = (total.double() + product).float()
    return total


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_are_in_the_order_of_inputs_and_rounded_once_each(dtype):
    weight, x = random(37, 53), random(9, 53, seed=1)
    right = one_by_one(x, weight.to(dtype).float())
    assert torch.equal(DenseLinear(weight, dtype)(x), right)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_no_row_depends_on_other_rows_or_on_threads(threads, dtype):
    weight, x = random(700, 600), random(41, 600, seed=1)
    linear = DenseLinear(weight, dtype)
    alone = torch.cat([linear(x[row : row + 1]) for row in range(len(x))])
    with torch_threads(threads):
        for rows in (2, 3, 7, 8, 9, 41):
            assert torch.equal(linear(x[:rows]), alone[:rows])
            assert torch.equal(linear(x[-rows:]), alone[-rows:])


@pytest.mark.parametrize("outputs", [1, 15, 16, 17, 31, 33, 48])
def test_no_output_depends_on_how_many_there_are(outputs):
    weight, x = random(64, 30), random(5, 30, seed=1)
    whole = DenseLinear(weight, torch.float32)(x)
    assert torch.equal(DenseLinear(weight[:outputs], torch.float32)(x), whole[:, :outputs])


def test_rows_of_a_wider_matrix_are_read_in_place_and_residuals_are_added():
    weight, wide = random(20, 30), random(6, 70, seed=1)
    linear, residual = DenseLinear(weight, torch.float32), random(6, 20, seed=2)
    for x in (wide[:, 13:43], wide.t()[:30].t(), random(30, 6, seed=3).t()):
        product = linear(x.contiguous())
        assert torch.equal(linear(x), product)
        assert torch.equal(linear.plus(x, residual.clone()), residual + product)


def test_no_rows_give_no_rows():
    linear = DenseLinear(random(20, 30), torch.float32)
    assert linear(torch.empty(0, 30)).shape == (0, 20)


@pytest.mark.parametrize("sizes", [(1, 1, 5, 16), (3, 7, 33, 20), (5, 2, 12, 100)])
def test_parts_have_weights_of_their_own_in_any_layout(sizes):
    parts, rows, inputs, outputs = sizes
    x, weight = random(parts, rows, inputs), random(parts, inputs, outputs, seed=1)
    right = torch.stack([one_by_one(a, b.t()) for a, b in zip(x, weight, strict=True)])
    assert torch.equal(fixed_product(x, weight), right)
    assert torch.equal(fixed_product(x, weight.transpose(1, 2).contiguous().transpose(1, 2)), right)
    by_row, out = x.transpose(0, 1).contiguous(), torch.full((rows, parts, outputs + 3), 7.0)
    multiply_fixed(by_row.transpose(0, 1), weight, out[..., :outputs].transpose(0, 1))
    assert torch.equal(out[..., :outputs].transpose(0, 1), right)
    assert (out[..., outputs:] == 7.0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_groups_of_rows_have_weights_of_their_own_and_other_rows_stay(dtype):
    weight, x = random(5, 40, 24), random(30, 24, seed=1)
    ends = torch.tensor([0, 3, 3, 20, 27], dtype=torch.int32)
    out, tiled = torch.full((30, 40), 7.0), tile_weight(weight, dtype)
    tiled.multiply_groups(x, out, ends)
    for first, last, part in ((0, 3, 1), (3, 20, 3), (20, 27, 4)):
        right = one_by_one(x[first:last], weight[part].to(dtype).float())
        assert torch.equal(out[first:last], right)
    assert (out[27:] == 7.0).all()


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("float32", "PackedLinear"), ("bfloat16", "PackedLinear"), ("float16", "HalfLinear")],
)
def test_without_compiled_loops_libraries_multiply_and_bfloat16_is_widened_with_a_warning(
    monkeypatch, caplog, dtype, name
):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    why_not_compiled.cache_clear()
    try:
        linear, stored = choose_linear(dtype, CPU)(random(20, 30)), stored_dtype(dtype, CPU)
    finally:
        why_not_compiled.cache_clear()
    assert type(linear).__name__ == name
    assert stored == computed_dtype(dtype, CPU) == torch.float32
    assert ("bfloat16 weights are widened to float32" in caplog.text) == (dtype == "bfloat16")


_ELSEWHERE = """
import torch
from outrider.ops.linear.dense_linear import DenseLinear
torch.manual_seed(6)
weight, x = torch.randn(40, 96), torch.randn(15, 96)
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    print(DenseLinear(weight, dtype)(x).view(torch.int32).tolist())
"""


@pytest.mark.slow  # compiles the kernel
def test_a_cpu_with_smaller_registers_computes_the_same_bits():
    old = {**os.environ, "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma,+f16c"}
    command = [sys.executable, "-c", _ELSEWHERE]
    ran = subprocess.run(command, env=old, capture_output=True, text=True, check=True)
    torch.manual_seed(6)
    weight, x = torch.randn(40, 96), torch.randn(15, 96)
    here = [DenseLinear(weight, dtype)(x).view(torch.int32).tolist() for dtype in DTYPES]
    assert ran.stdout.splitlines() == [str(each) for each in here]
