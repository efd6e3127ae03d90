"""Integers in groups as weight blocks of a CPU, against the numbers that packers wrote."""

import pytest
import torch
from support.block_inputs import rounded
from support.packed_forms import GROUPS, quantised_of
from support.torch_threads import torch_threads

from outrider.ops.linear.block_linear import BlockLinear
from outrider.ops.linear.choose_linear import choose_linear
from outrider.ops.linear.dense_linear import DenseLinear
from outrider.ops.linear.group_blocks import fits_blocks, group_linear, group_parts

CPU = torch.device("cpu")


@pytest.mark.fast_cases(9)
@pytest.mark.parametrize("form", GROUPS)
def test_parts_have_the_numbers_of_the_stored_weight(form):
    weight, values = quantised_of(form, 24, 192)
    assert fits_blocks(weight)
    in_order = values[:, weight.order] if len(weight.order) else values
    assert torch.equal(group_parts(weight).widen(), in_order)


@pytest.mark.fast_cases(9)
@pytest.mark.parametrize("form", GROUPS)
def test_products_are_those_of_the_stored_weight(form):
    weight, values = quantised_of(form, 40, 192)
    torch.manual_seed(1)
    x = torch.randn(11, 192) * torch.tensor([1e-3, 1.0, 50.0, 0.0] * 3)[:11, None]
    by_code = weight.order if len(weight.order) else torch.arange(192)
    expected = rounded(x[:, by_code]) @ values[:, by_code].double().T
    # Codes half-way between two integers may be rounded to either in another precision.
    assert (group_linear(weight)(x) - expected).norm() / expected.norm() < 1e-3


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("form", GROUPS)
def test_bits_of_a_row_do_not_depend_on_other_rows_or_threads(form):
    linear = group_linear(quantised_of(form, 72, 192)[0])
    torch.manual_seed(2)
    x = torch.randn(19, 192)
    together = linear(x)
    for threads in (1, 2, 3):
        with torch_threads(threads):
            for num in range(1, 20):
                assert torch.equal(linear(x[:num]), together[:num])
                assert torch.equal(linear(x[-num:]), together[-num:])


def test_groups_that_are_no_whole_blocks_are_widened():
    make = choose_linear("packed", CPU)
    assert isinstance(make(quantised_of("AWQ groups of 32", 16, 64)[0]), BlockLinear)
    for form in ("AWQ", "fp8 rows", "MXFP4"):  # groups of 8; no integers
        assert isinstance(make(quantised_of(form, 16, 64)[0]), DenseLinear)
    wide = choose_linear("float32", CPU)
    assert isinstance(wide(quantised_of("AWQ groups of 32", 16, 64)[0]), DenseLinear)
