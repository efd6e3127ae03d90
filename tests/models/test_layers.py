from functools import partial

import pytest
import torch
import torch.nn.functional as F
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from outrider.errors import ConfigError
from outrider.ops.linear.choose_linear import choose_linear
from outrider.ops.linear.dense_linear import DenseLinear
from outrider.ops.linear.float16_linear import HalfLinear
from outrider.ops.linear.int8_linear import Int8Linear
from outrider.ops.linear.linear import BiasedLinear, PackedLinear, PlainLinear
from outrider.ops.norm_rope.layer_norm import LayerNorm
from outrider.ops.norm_rope.rms_norm import CompiledNorm, LengthNorm, RmsNorm

CPU = torch.device("cpu")
OUT, IN = 37, 53
WideDense = partial(DenseLinear, dtype=torch.float32)


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)


def rounded_to_int8(weight):
    """The float32 weight that an int8 layer represents."""
    step = weight.abs().amax(1, keepdim=True) / 127
    return (weight / step).round() * step


@pytest.mark.parametrize("num_rows", [1, 2, 7, 70])
@pytest.mark.parametrize("kind", [PlainLinear, PackedLinear, WideDense, Int8Linear])
def test_every_kind_of_linear_layer_gives_the_product_for_any_number_of_rows(kind, num_rows):
    weight, bias = torch.randn(OUT, IN), torch.randn(OUT)
    x, residual = torch.randn(num_rows, IN), torch.randn(num_rows, OUT)
    linear = kind(weight)
    stored = rounded_to_int8(weight) if kind is Int8Linear else weight
    exact = F.linear(x.double(), stored.double())
    # Outputs are up to 26, and sums in float32 err by up to 8e-6: their order is the CPU's.
    atol = 1e-3 if kind is Int8Linear else 3e-5

    def assert_near(ours, right):
        torch.testing.assert_close(ours.double(), right, rtol=0, atol=atol)

    assert_near(linear(x), exact)
    assert_near(linear.plus(x, residual.clone()), exact + residual)
    biased = BiasedLinear(linear, bias)
    assert_near(biased(x), exact + bias)
    assert_near(biased.plus(x, residual.clone()), exact + bias + residual)


def test_int8_represents_small_activations_beside_a_large_one():
    weight = torch.randn(OUT, IN)
    x = torch.randn(1, IN)
    x[0, 3] = 100.0  # one digit would round the others to multiples of 0.8
    expected = F.linear(x, rounded_to_int8(weight))
    assert (Int8Linear(weight)(x) - expected).abs().max() <= 0.02


def test_int8_without_vnni_has_two_digits_of_7_bits(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    weight, x = torch.randn(OUT, IN), torch.randn(3, IN)
    expected = F.linear(x, rounded_to_int8(weight))
    assert (Int8Linear(weight)(x) - expected).abs().max() <= 5e-3


def test_int8_gives_zeros_for_a_row_of_zeros():
    assert not Int8Linear(torch.randn(OUT, IN))(torch.zeros(2, IN)).any()


def test_int8_weights_are_refused_on_a_gpu():
    with pytest.raises(ConfigError, match="int8"):
        choose_linear("int8", torch.device("cuda"))


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("kind", [RmsNorm, LengthNorm, CompiledNorm])
def test_norms_equal_transformers(kind, scale):
    reference = LlamaRMSNorm(IN, eps=1e-5)
    torch.nn.init.normal_(reference.weight)
    x = torch.randn(5, IN) * scale
    weight = reference.weight.detach()
    torch.testing.assert_close(kind(weight, 1e-5)(x), reference(x).detach(), atol=1e-6, rtol=1e-5)


def test_layer_norms_equal_transformers_and_no_row_depends_on_others():
    reference = CohereLayerNorm(IN, eps=1e-5)
    torch.nn.init.normal_(reference.weight)
    norm, x = LayerNorm(reference.weight.detach(), 1e-5), torch.randn(65, IN) + 0.7
    normed = norm(x)
    torch.testing.assert_close(normed, reference(x).detach(), atol=1e-6, rtol=1e-5)
    assert all(torch.equal(norm(x[row : row + 1]), normed[row : row + 1]) for row in (0, 31, 64))


@pytest.mark.parametrize("kind", [RmsNorm, LengthNorm, CompiledNorm])
def test_norms_of_a_row_of_zeros_are_zeros(kind):
    assert not kind(torch.ones(IN), 1e-5)(torch.zeros(2, IN)).any()


@pytest.mark.parametrize("kind", [PlainLinear, PackedLinear, WideDense, Int8Linear, HalfLinear])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_changes_no_other_row(kind, value):
    linear, x = kind(torch.randn(OUT, IN)), torch.randn(5, IN)
    right, bad, is_good = linear(x.clone()), x.clone(), torch.arange(5) != 2
    bad[2, 7] = value
    got = linear(bad)
    assert torch.equal(got[is_good], right[is_good])
    assert not got[2].isfinite().any()


def test_compiled_norms_take_heads_of_their_own_weights_and_many_rows():
    torch.manual_seed(1)
    weight, wide = torch.randn(3, IN), torch.randn(700, 5, IN)
    x = wide[:, 1:4]  # not contiguous
    norm = CompiledNorm(weight, 1e-5)
    many = norm(x)
    torch.testing.assert_close(many, LengthNorm(weight, 1e-5)(x), atol=1e-6, rtol=1e-5)
    assert all(torch.equal(norm(x[row : row + 1]), many[row : row + 1]) for row in (0, 350, 699))
