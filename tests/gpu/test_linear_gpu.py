"""The linear kernels, compiled: near a float64 product, with bits that ignore the other rows."""

import pytest
import torch
import torch.nn.functional as F
from support.linear_cases import SHAPES, operands

pytest.importorskip("triton")
from outrider.ops.linear.library_linear import LibraryLinear
from outrider.ops.linear.linear import FixedLinear
from outrider.ops.linear.linear_triton import linear, linear_plus, linear_swiglu

REAL = [
    (1, 6144, 4096),
    (8, 4096, 14336),
    (33, 28672, 4096),
    (64, 960, 576),
    (90, 6144, 4096),
    (130, 28672, 4096),
    (30, 4096, 14336),
    (150, 6144, 4096),
    (200, 4096, 4096),
    (310, 6152, 4104),  # tiles that reach over every edge
    (500, 4096, 14336),
    (1100, 960, 576),
]


# On both sides of every border between two tiles.
COUNTS = [1, 2, 16, 17, 24, 32, 33, 64, 65, 80, 81, 96, 97, 128, 129, 160, 161, 192, 193, 256, 257]
COUNTS += [320, 321, 384, 385, 500, 512, 513, 1000]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [*SHAPES, *REAL])
def test_products_are_as_good_as_their_type_allows(shape, dtype):
    x, weight, residual = operands(*shape, device="cuda", dtype=dtype)
    exact = F.linear(x.double(), weight.double())
    eps = torch.finfo(dtype).eps
    close = {"rtol": eps, "atol": 1e-4}  # thousands of terms are summed in float32
    torch.testing.assert_close(linear(x, weight).double(), exact, **close)
    total = linear_plus(x, weight, residual).double()
    torch.testing.assert_close(total, exact + residual.double(), **close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [*SHAPES, *REAL])
def test_a_gate_is_as_good_as_its_type_allows(shape, dtype):
    rows, outputs, inputs = shape
    x, weight, _ = operands(rows, 2 * (outputs // 2), inputs, device="cuda", dtype=dtype)
    gate, up = F.linear(x.double(), weight.double()).chunk(2, dim=-1)
    # Gates and ups are rounded too, and silu makes the error of a gate of -6 five times larger.
    close = {"rtol": 6 * torch.finfo(dtype).eps, "atol": 1e-4}
    torch.testing.assert_close(linear_swiglu(x, weight).double(), F.silu(gate) * up, **close)


@pytest.mark.parametrize("kind", ["plain", "with a residual", "gated"])
@pytest.mark.parametrize(
    "size", [(4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (960, 576), (576, 1536)]
)
def test_the_bits_of_a_row_depend_on_nothing_but_the_row(size, kind):
    x, weight, residual = operands(1100, *size, device="cuda", dtype=torch.bfloat16)
    function = {
        "plain": lambda rows: linear(x[rows], weight),
        "with a residual": lambda rows: linear_plus(x[rows], weight, residual[rows]),
        "gated": lambda rows: linear_swiglu(x[rows], weight),
    }[kind]
    whole = function(slice(0, 1100))
    for count in COUNTS:
        assert torch.equal(function(slice(0, count)), whole[:count]), count


@pytest.mark.parametrize(
    "size", [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (2560, 9728), (960, 576)]
)
def test_a_layer_has_the_same_bits_by_our_kernels_and_by_the_library(size):
    x, weight, residual = operands(2100, *size, device="cuda", dtype=torch.bfloat16)
    layer = FixedLinear(weight)
    few = slice(0, 48)  # computed by our kernels
    assert not LibraryLinear(weight).takes(x[few])
    product, total = layer(x[few]), layer.plus(x[few], residual[few].clone())
    gated = layer.swiglu(x[few])
    for count in (65, 96, 97, 128, 160, 192, 193, 256, 384, 512, 1000, 2100):
        rows = slice(0, count)
        assert torch.equal(layer(x[rows])[few], product), count
        assert torch.equal(layer.plus(x[rows], residual[rows].clone())[few], total), count
        assert torch.equal(layer.swiglu(x[rows])[few], gated), count


@pytest.mark.parametrize("first", [0, 1, 8])  # aligned for TMA, not aligned, aligned
def test_rows_that_lie_anywhere_have_the_bits_of_packed_ones(first):
    x, _, residual = operands(130, 6144, 4104, device="cuda", dtype=torch.bfloat16)
    _, weight, _ = operands(1, 6144, 4096, device="cuda", dtype=torch.bfloat16)
    part = x[:, first : first + 4096]
    packed = part.clone(memory_format=torch.contiguous_format)
    assert torch.equal(linear(part, weight), linear(packed, weight))
    got = linear_plus(part[::2], weight, residual[:65])
    assert torch.equal(got, linear_plus(packed[::2].contiguous(), weight, residual[:65]))
    assert torch.equal(linear_swiglu(part, weight), linear_swiglu(packed, weight))
