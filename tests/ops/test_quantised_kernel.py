"""Products with quantised weights, interpreted, are those with the numbers that codes stand for.

tests/gpu compiles them.
"""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.packed_forms import FORMS, LARGE, SMALL, quantised_of

from outrider.ops.linear.any_weight import fuse_weights, stack_weights, widened
from outrider.ops.linear.kernel_weight import kernel_weight, kernel_weight_in_place
from outrider.ops.linear.quantised_weight import QuantisedWeight

pytest.importorskip("triton")
from outrider.ops.linear import quantised_linear_triton as kernels
from outrider.ops.linear.quantised_linear import QuantisedLinear, in_order
from outrider.ops.linear.widen_codes_triton import widen_codes

ROWS, OUTPUTS, INPUTS = 3, 40, 160  # more inputs than a block of 4-bit codes, and no multiple


def inputs(rows=ROWS, columns=INPUTS, seed=0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def assert_near_exact(ours, exact):
    """Sums of 160 products in float32 against float64; TF32 would err by 5e-4 of them.

    A product of torch in float32 has as large errors as ours, and others on every type of CPU.
    """
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.fast_cases(6)
@pytest.mark.parametrize("form", FORMS | LARGE | SMALL)
def test_a_product_is_that_with_the_stored_numbers(form):
    weight, values = quantised_of(form, OUTPUTS, INPUTS)
    layer = QuantisedLinear(kernel_weight(weight))
    x, residual = inputs(), inputs(columns=OUTPUTS)
    product = F.linear(x.double(), values.double())
    assert_near_exact(layer(x), product)
    assert_near_exact(layer.plus(x, residual), residual + product)
    gate, up = product.chunk(2, dim=-1)
    assert_near_exact(layer.swiglu(x), F.silu(gate) * up)


def numbers_of(weight):
    """The numbers of a kernel's weight: its products with the rows of the identity."""
    found, rows = kernel_weight(weight), torch.eye(weight.inputs)
    return QuantisedLinear(found)(rows).t()


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("form", FORMS | LARGE | SMALL)
def test_a_kernel_widens_codes_to_the_numbers_exactly(form):
    weight, values = quantised_of(form, 16, INPUTS)
    assert torch.equal(weight.widen(), values)
    assert torch.equal(numbers_of(weight), values)


def test_scales_lie_in_rows_of_known_strides_for_copies_by_tma():
    for form in FORMS | LARGE | SMALL:
        words = kernel_weight(quantised_of(form, OUTPUTS, INPUTS)[0]).scales.words
        assert words.stride() == (OUTPUTS, 1), form  # [1, out] of scales per output, too


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("form", ["fp8 rows", "GPTQ", "int8 rows", "MXFP4"])
def test_codes_widened_first_have_the_same_products(form):
    weight, _ = quantised_of(form, OUTPUTS, INPUTS)
    found = kernel_weight(weight)
    x, none = in_order(inputs(), found), kernels.no_arrivals(found)
    wide = widen_codes(found, x)
    assert wide.codes.dtype == x.dtype
    ours = kernels.multiply_quantised(x, wide, x, none)
    assert torch.equal(ours, kernels.multiply_quantised(x, found, x, none))


@pytest.mark.parametrize("form", ["fp8 rows", "GPTQ v2"])
def test_codes_are_arranged_in_their_own_memory_if_they_fill_it(form):
    weight, _ = quantised_of(form, 64, 256)
    right, codes = kernel_weight(weight), weight.codes
    found = kernel_weight_in_place(weight)
    assert torch.equal(found.codes.view(torch.uint8), right.codes.view(torch.uint8))
    assert found.codes.data_ptr() == codes.data_ptr() != right.codes.data_ptr()
    odd, values = quantised_of(form, 40, 256)
    apart = kernel_weight_in_place(odd)
    assert apart.codes.data_ptr() != odd.codes.data_ptr()
    assert torch.equal(odd.widen(), values)


def test_slices_are_added_in_order_by_one_block_of_threads_or_several(monkeypatch):
    weight, values = quantised_of("fp8 rows", 32, 1152)
    assert kernels.slices_of(*weight.shape) == (2, 640)
    layer, x, residual = QuantisedLinear(kernel_weight(weight)), inputs(2, 1152), inputs(2, 32)
    split = layer.plus(x, residual)
    torch.testing.assert_close(split, residual + F.linear(x, values), rtol=1e-5, atol=1e-4)
    assert torch.equal(layer.plus(x, residual), split)  # counters are zero again
    monkeypatch.setattr(kernels, "MOST_SPLIT_ROWS", 0)
    assert torch.equal(layer.plus(x, residual), split)


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("form", FORMS | LARGE | SMALL)
def test_slices_side_by_side_give_the_same_product(form):
    inputs_of_slices = 1152  # the second slice is shorter
    weight, values = quantised_of(form, 40, inputs_of_slices)
    found = kernel_weight(weight)
    x, residual = in_order(inputs(3, inputs_of_slices), found), inputs(3, 40)
    tile = kernels.QuantisedTile(8, 16, stages=2, num_warps=2, slices=2)
    none = kernels.no_arrivals(found)
    ours = kernels.multiply_quantised(x, found, residual, none, has_residual=True, tile=tile)
    product = F.linear(inputs(3, inputs_of_slices).double(), values.double())
    torch.testing.assert_close(ours.double(), residual + product, rtol=1e-5, atol=1e-4)
    gated = kernels.multiply_quantised(x, found, x, none, is_gated=True, tile=tile)
    gate, up = product.chunk(2, dim=-1)
    torch.testing.assert_close(gated.double(), F.silu(gate) * up, rtol=1e-5, atol=1e-4)


def test_a_tile_of_one_warp_gives_the_same_product():
    weight, values = quantised_of("GPTQ v2", OUTPUTS, INPUTS)
    found, x = kernel_weight(weight), inputs()
    tile, none = kernels.QuantisedTile(8, 32, stages=6, num_warps=1), kernels.no_arrivals(found)
    ours = kernels.multiply_quantised(x, found, x, none, tile=tile)
    torch.testing.assert_close(ours, F.linear(x, values))


@pytest.mark.parametrize("slices", [4, 8])
def test_sums_of_slices_are_added_in_order(slices):
    size = 1024 * slices
    weight, _ = quantised_of("fp8 rows", 16, size)
    found, x = kernel_weight(weight), torch.zeros(2, size)
    x[:, 5::1024] = inputs(2, slices)  # a slice is one product, so only their order rounds
    assert kernels.slices_of(*found.shape) == (slices, 1024)
    tile = kernels.QuantisedTile(8, 16, stages=2, num_warps=slices, slices=slices)
    none = kernels.no_arrivals(found)
    ours = kernels.multiply_quantised(x, found, x, none, tile=tile)
    assert torch.equal(ours, kernels.multiply_quantised(x, found, x, none))


@pytest.mark.fast_cases(99)
@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("fp8 blocks", "float32"),
        ("int4 groups", "float32"),
        ("AWQ", "float16"),
        ("NVFP4", "e4m3"),
        ("MXFP4", "e8m0 of 32"),
        ("MXFP4 in groups of 8", "e8m0"),
        ("fp8 blocks of 128, powers of two", "e8m0"),
    ],
)
def test_scales_lie_in_words_that_kernels_can_copy_ahead(form, words):
    weight, values = quantised_of(form, OUTPUTS, INPUTS)
    found = kernel_weight(weight)
    assert (found.scales.form, found.scales.words.dtype) == (words, torch.int32)
    # In half precision tiles are as deep as on a GPU.
    half, x = values.half(), inputs().half()
    ours = QuantisedLinear(found)(x)
    torch.testing.assert_close(
        ours.double(), F.linear(x.double(), half.double()), rtol=2e-3, atol=1e-4
    )


def test_zero_points_that_words_hold_take_no_memory_of_their_own():
    weight, _ = quantised_of("AWQ", OUTPUTS, INPUTS)
    assert kernel_weight(weight).scales.zeros.untyped_storage().nbytes() == 0


def test_scales_in_bfloat16_are_widened_with_their_zero_points():
    weight, _ = quantised_of("AWQ", OUTPUTS, INPUTS)
    scales = replace(weight.scales, scales=weight.scales.scales.bfloat16())
    weight = replace(weight, scales=scales)
    found = kernel_weight(weight)
    assert found.scales.form == "bfloat16"
    assert torch.equal(numbers_of(weight), weight.widen())


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
    weight, _ = quantised_of("MXFP4 in groups of 8", 8, 32)
    weight.scales.scales[0], weight.scales.scales[1] = 0, 255
    right = weight.widen()
    assert right[:, 8:16].isnan().all()
    assert right[:, :8].abs().max() > 0
    assert not weight.is_finite()
    finite = right.isfinite()
    found = numbers_of(weight)  # a row that has NaN is NaN
    assert torch.equal(found[:, 0].isnan(), right.isnan().any(1))
    weight.scales.scales[1] = 120
    assert torch.equal(numbers_of(weight)[:, :8], right[:, :8])
    assert finite[:, :8].all()


@pytest.mark.parametrize(
    ("power", "form"), [(0, "e8m0"), (1, "e8m0 of 32"), (128, "e8m0 of 32"), (129, "e8m0")]
)
def test_unusual_powers_of_two_are_widened_apart(power, form):
    weight, _ = quantised_of("MXFP4", 16, INPUTS)
    weight.scales.scales[1] = power
    assert kernel_weight(weight).scales.form == form
    assert torch.equal(numbers_of(weight), weight.widen())
