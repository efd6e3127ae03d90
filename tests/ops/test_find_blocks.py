"""A weight that was widened from GGUF blocks gives these blocks back; any other weight none."""

import gguf
import pytest
import torch

from outrider.ops.compiled.block_kind import KindName
from outrider.ops.compiled.find_blocks import find_blocks
from outrider.ops.linear.block_linear import BlockLinear
from outrider.ops.linear.choose_linear import choose_linear
from outrider.ops.linear.dense_linear import DenseLinear

_CPU = torch.device("cpu")
_FOUND = ("Q4_0", "Q4_1", "Q8_0")


def _widened(name: KindName) -> torch.Tensor:  # [40, 96]
    torch.manual_seed(1)
    weight = torch.randn(40, 96) * torch.logspace(-4, 1, 40)[:, None]
    weight[7, 32:64] = 0.0
    weight[9, :32] = 0.25
    kind = gguf.GGMLQuantizationType[name]
    return torch.from_numpy(
        gguf.quants.dequantize(gguf.quants.quantize(weight.numpy(), kind), kind)
    )


@pytest.mark.parametrize("name", _FOUND)
def test_blocks_are_found_without_loss(name: KindName) -> None:
    weight = _widened(name)
    found = find_blocks(weight)
    assert found is not None
    assert found.name == name
    assert torch.equal(found.parts().widen(), weight)


@pytest.mark.parametrize("name", _FOUND)
@pytest.mark.parametrize("row", [0, 39])
def test_a_weight_with_one_other_number_has_no_blocks(name: KindName, row: int) -> None:
    weight = _widened(name)
    weight[row, 50] = torch.nextafter(weight[row, 50], torch.tensor(1e9))
    assert find_blocks(weight) is None


@pytest.mark.parametrize("shape", [(40, 96), (40, 90), (3, 32)])
def test_weights_that_were_never_quantised_have_no_blocks(shape: tuple[int, int]) -> None:
    torch.manual_seed(2)
    assert find_blocks(torch.randn(shape)) is None


def test_packed_layers_keep_blocks_and_widen_nothing_else() -> None:
    make_linear = choose_linear("packed", _CPU)
    assert isinstance(make_linear(_widened("Q4_1")), BlockLinear)
    torch.manual_seed(3)
    assert isinstance(make_linear(torch.randn(40, 96)), DenseLinear)
