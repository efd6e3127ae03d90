"""GGUF blocks as codes of the kernels for quantised weights, against gguf's own numbers."""

import gguf
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.gguf_files import random_raw

from outrider.ops.compiled.block_kind import KINDS
from outrider.ops.compiled.gguf_rows import GgufRows
from outrider.ops.linear.block_codes import codes_of_blocks
from outrider.ops.linear.group_blocks import fits_blocks
from outrider.ops.linear.kernel_weight import kernel_weight
from outrider.ops.linear.quantised_linear import QuantisedLinear

OUTPUTS, INPUTS = 40, 512
WITH_MINIMA = [name for name, kind in KINDS.items() if kind.has_minimum]


def blocks_of(kind, outputs=OUTPUTS):
    raw = random_raw(np.random.default_rng(3), outputs, kind, columns=INPUTS, scale=2.0**-6)
    values = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    return GgufRows(kind, torch.from_numpy(raw)), torch.from_numpy(values)


def assert_close(found, right, kind):
    if kind not in WITH_MINIMA:
        assert torch.equal(found, right)
    assert (found - right).abs().max() <= 1e-6 * right.abs().max()


@pytest.mark.fast_cases(99)
@pytest.mark.parametrize("kind", KINDS)
def test_codes_have_the_numbers_of_the_blocks(kind):
    rows, values = blocks_of(kind)
    weight = codes_of_blocks(rows)
    assert weight.codes.numel() == OUTPUTS * INPUTS // (2 if KINDS[kind].bits == 4 else 1)
    assert_close(weight.widen(), values, kind)
    assert weight.is_finite()
    assert fits_blocks(weight) is (kind in ("Q4_0", "Q5_0", "Q8_0"))


def test_a_scale_of_zero_leaves_the_minimum():
    rows, values = blocks_of("Q4_K")
    raw = rows.rows.clone()
    raw[:, 4:8] &= 0xC0  # the steps of the first four blocks
    values = gguf.quants.dequantize(raw.numpy(), gguf.GGMLQuantizationType.Q4_K)
    assert (values[:, :32] == values[:, :1]).all()
    weight = codes_of_blocks(GgufRows("Q4_K", raw))
    assert_close(weight.widen(), torch.from_numpy(values), "Q4_K")


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_those_of_the_numbers(kind):
    pytest.importorskip("triton")
    rows, values = blocks_of(kind)
    layer = QuantisedLinear(kernel_weight(codes_of_blocks(rows).to(torch.device("cpu"))))
    x = torch.randn(3, INPUTS, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(layer(x), F.linear(x, values), rtol=1e-4, atol=1e-3)


@pytest.mark.fast_cases(99)
@pytest.mark.parametrize("kind", KINDS)
def test_some_inputs_of_a_weight_keep_their_codes(kind):
    rows, _ = blocks_of(kind)
    whole = codes_of_blocks(rows)
    part = whole.narrow(1, 96, 160)
    assert part.scales.group == whole.scales.group
    assert torch.equal(part.widen(), whole.widen()[:, 96:256])
