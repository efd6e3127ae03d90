"""Products with quantised weights, interpreted, are those with the numbers that codes stand for.

tests/gpu compiles them.
"""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.packed_forms import FORMS, LARGE, quantised_of

from outrider.ops.linear.any_weight import fuse_weights, stack_weights, widened
from outrider.ops.linear.kernel_weight import NIBBLE_BLOCK, kernel_weight
from outrider.ops.linear.quantised_weight import QuantisedWeight

pytest.importorskip("triton")
from outrider.ops.linear.linear import FixedLinear
from outrider.ops.linear.linear_limits import MOST_QUANTISED_ROWS
from outrider.ops.linear.linear_triton import LinearTile, launch_linear
from outrider.ops.linear.quantised_linear import QuantisedLinear
from outrider.ops.linear.quantised_product_triton import widen_triton

ROWS, OUTPUTS, INPUTS = 3, 40, 160  # more inputs than a block of 4-bit codes, and no multiple


def inputs(rows=ROWS, columns=INPUTS, seed=0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


@pytest.mark.fast_cases(6)
@pytest.mark.parametrize("form", FORMS | LARGE)
def test_a_product_is_that_with_the_stored_numbers(form):
    weight, values = quantised_of(form, OUTPUTS, INPUTS)
    layer, x, residual = (
        QuantisedLinear(kernel_weight(weight), FixedLinear),
        inputs(),
        inputs(columns=OUTPUTS),
    )
    torch.testing.assert_close(layer(x), F.linear(x, values))
    torch.testing.assert_close(layer.plus(x, residual), residual + F.linear(x, values))
    gate, up = F.linear(x, values).chunk(2, dim=-1)
    torch.testing.assert_close(layer.swiglu(x), F.silu(gate) * up)


@pytest.mark.parametrize("form", FORMS | LARGE)
def test_a_kernel_widens_codes_to_the_numbers_exactly(form):
    weight, values = quantised_of(form, OUTPUTS, INPUTS)
    assert torch.equal(weight.widen(), values)
    wide = widen_triton(kernel_weight(weight), torch.float32)
    assert torch.equal(wide, values[:, weight.order] if len(weight.order) else values)


def test_many_rows_are_multiplied_by_the_widened_weight():
    weight, values = quantised_of("GPTQ", 16, 32)
    layer, x = (
        QuantisedLinear(kernel_weight(weight), FixedLinear),
        inputs(MOST_QUANTISED_ROWS + 1, 32),
    )
    torch.testing.assert_close(layer(x), F.linear(x, values))


@pytest.mark.fast_cases(99)
@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("fp8 blocks", "float32"),
        ("int4 groups", "float32"),
        ("AWQ", "float16"),
        ("NVFP4", "e4m3"),
        ("MXFP4 in groups of 32", "e8m0"),
        ("MXFP4", "float32"),  # more groups in half a tile than a word has bytes
        ("fp8 blocks of 128, powers of two", "e8m0"),
    ],
)
def test_scales_lie_in_words_that_kernels_can_copy_ahead(form, words):
    weight, values = quantised_of(form, OUTPUTS, INPUTS)
    found = kernel_weight(weight)
    assert (found.scales.form, found.scales.words.dtype) == (words, torch.int32)
    # In half precision tiles are as deep as on a GPU.
    half, x = values.half(), inputs().half()
    ours = QuantisedLinear(found, FixedLinear)(x)
    torch.testing.assert_close(
        ours.double(), F.linear(x.double(), half.double()), rtol=2e-3, atol=1e-4
    )


def test_scales_in_bfloat16_are_widened_with_their_zero_points():
    weight, _ = quantised_of("AWQ", OUTPUTS, INPUTS)
    scales = replace(weight.scales, scales=weight.scales.scales.bfloat16())
    weight = replace(weight, scales=scales)
    found = kernel_weight(weight)
    assert found.scales.form == "bfloat16"
    assert torch.equal(widen_triton(found, torch.float32), weight.widen())


@pytest.mark.parametrize("form", ["fp8 blocks", "int4 groups"])
def test_sums_run_as_with_a_dense_weight(form):
    weight, values = quantised_of(form, OUTPUTS, INPUTS)
    # The interpreter sums the inputs of a tile in an order of its own.
    depth = NIBBLE_BLOCK // 2 if weight.has_nibbles else NIBBLE_BLOCK
    dense, codes = (LinearTile(16, 32, each, stages=1) for each in (depth, NIBBLE_BLOCK))
    options, x = {"has_residual": False, "is_gated": False}, inputs()
    ours = launch_linear(x, kernel_weight(weight), x, tile=codes, **options)
    assert torch.equal(ours, launch_linear(x, values, x, tile=dense, **options))


@pytest.mark.parametrize("form", ["fp8 tensor", "int4 groups, zeros, order", "GPTQ v2", "NVFP4"])
def test_stacked_weights_keep_their_own_scales(form):
    (first, ours), (second, theirs) = (quantised_of(form, 16, 32, seed=seed) for seed in (1, 2))
    stacked = stack_weights([first, second])
    # Two weights with different orders of inputs have no common codes.
    assert isinstance(stacked, QuantisedWeight) == (not len(first.order))
    assert torch.equal(widened(stacked), torch.cat([ours, theirs]))


def test_weights_with_and_without_zero_points_are_stacked():
    plain, ours = quantised_of("int4 groups", 16, 32)
    other, theirs = quantised_of("AWQ", 16, 32)
    wide = replace(other.scales, scales=other.scales.scales.float())  # as the first has them
    both = stack_weights([plain, replace(other, scales=wide)])
    assert isinstance(both, QuantisedWeight)
    assert torch.equal(both.widen(), torch.cat([ours, theirs]))


def test_rows_are_fused_in_the_order_of_a_layer():
    (first, ours), (second, theirs) = (
        quantised_of("fp8 blocks", 16, 32, seed=seed) for seed in (1, 2)
    )
    right, quantised = {"a": ours, "b": theirs}, {"a": first, "b": second}

    def stack_rows(read):
        return torch.cat([read("a")[8:], read("b"), read("a")[:8]])

    fused = fuse_weights(quantised, stack_rows)
    assert isinstance(fused, QuantisedWeight)
    assert torch.equal(fused.widen(), stack_rows(right.__getitem__))


def test_the_least_and_the_largest_power_of_two_are_widened():
    weight, _ = quantised_of("MXFP4", 8, 32)
    weight.scales.scales[0], weight.scales.scales[1] = 0, 255
    right = weight.widen()
    assert right[:, 8:16].isnan().all()
    assert right[:, :8].abs().max() > 0
    assert not weight.is_finite()
    found = widen_triton(kernel_weight(weight), torch.float32)
    torch.testing.assert_close(found, right, rtol=0, atol=0, equal_nan=True)
