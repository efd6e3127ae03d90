"""A norm and the layer behind it are fused where one kernel computes both, with equal results."""

import pytest
import torch

pytest.importorskip("triton")
from support.layer_kernels import EPS, random

from outrider.models.layers.attention_layer import AttentionStep, SplitProjection
from outrider.models.layers.gated_activation import SplitGate, gate_of
from outrider.models.layers.normed_linear import gate_behind, project_behind
from outrider.models.model_config import AttentionConfig
from outrider.ops.linear.linear import BiasedLinear, FixedLinear, PlainLinear
from outrider.ops.linear.linear_limits import MOST_SMALL_ROWS
from outrider.ops.norm_rope.head_norm import NoHeadNorm, NormEachHead
from outrider.ops.norm_rope.rms_norm import KernelNorm, RmsNorm
from outrider.ops.norm_rope.rotary import Rotation

HALF = ("cpu", torch.float16)  # the kernels are interpreted
HIDDEN = 48


def norm_of(width=HIDDEN, like=HALF):
    return KernelNorm(random(width, like=like, seed=1), EPS)


@pytest.mark.parametrize("rows", [1, MOST_SMALL_ROWS, MOST_SMALL_ROWS + 1])
def test_a_gate_fused_with_its_norm_reads_unnormalised_rows(rows):
    weight = random(40, HIDDEN, like=HALF, seed=2)
    norm, gate = gate_behind(norm_of(), gate_of(FixedLinear(weight)))
    x = random(rows, HIDDEN, like=HALF, seed=3)
    assert norm(x) is x
    right = SplitGate(PlainLinear(weight))(RmsNorm(norm_of().weight, EPS)(x))
    torch.testing.assert_close(gate(x), right, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("rows", [1, 5, MOST_SMALL_ROWS + 1])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_projection_fused_with_its_norm_reads_unnormalised_rows(rows, has_bias):
    config, x = (
        AttentionConfig(heads=2, kv_heads=1, head_dim=16),
        random(rows, 48, like=HALF, seed=3),
    )
    weight, bias = random(64, HIDDEN, like=HALF, seed=4), random(64, like=HALF, seed=5)
    linear = BiasedLinear(FixedLinear(weight), bias) if has_bias else FixedLinear(weight)
    plain = BiasedLinear(PlainLinear(weight), bias) if has_bias else PlainLinear(weight)
    apart = SplitProjection(config, qkv=linear, head_norm=NoHeadNorm())
    norm, project = project_behind(norm_of(), apart)
    layers = [random(6, 4, 2, 16, like=HALF, seed=6) for _ in range(2)]
    step = step_of(rows)
    assert norm(x) is x
    unfused = SplitProjection(config, qkv=plain, head_norm=NoHeadNorm())
    theirs = unfused(RmsNorm(norm_of().weight, EPS)(x), layers[0], step)
    torch.testing.assert_close(project(x, layers[1], step), theirs, rtol=1e-2, atol=3e-2)
    torch.testing.assert_close(layers[1], layers[0], rtol=1e-2, atol=3e-2)


def test_layers_that_the_fused_kernel_does_not_support_stay_separate():
    norm, wide = norm_of(), ("cpu", torch.float32)
    for gate in (
        gate_of(PlainLinear(random(8, HIDDEN, like=HALF, seed=2))),
        gate_of(FixedLinear(random(8, HIDDEN, like=wide, seed=2))),
        gate_of(FixedLinear(random(8, 2048, like=HALF, seed=2))),
    ):
        assert gate_behind(norm, gate) == (norm, gate)
    config = AttentionConfig(heads=1, kv_heads=1, head_dim=16)
    each = NormEachHead(norm_of(16))
    qkv = FixedLinear(random(48, HIDDEN, like=HALF, seed=4))
    apart = SplitProjection(config, qkv=qkv, head_norm=each)
    gated = SplitProjection(config, qkv=qkv, head_norm=NoHeadNorm(), has_gates=True)
    for one in (apart, gated):
        assert project_behind(norm, one) == (norm, one)


def test_ranks_keep_the_projection_separate_because_the_residual_of_one_of_them_counts():
    config = AttentionConfig(heads=1, kv_heads=1, head_dim=16)
    qkv = FixedLinear(random(48, HIDDEN, like=HALF, seed=4))
    apart, norm = SplitProjection(config, qkv=qkv, head_norm=NoHeadNorm()), norm_of()
    assert project_behind(norm, apart)[1] is not apart
    assert project_behind(norm, apart, num_ranks=2) == (norm, apart)


def step_of(rows):
    angles = random(rows, 1, 8, like=HALF, seed=7)
    cos, sin = angles.cos().repeat(1, 1, 2), torch.cat([-angles.sin(), angles.sin()], -1)
    return AttentionStep(
        rotation=Rotation(cos, sin),
        slots=torch.arange(rows) + 4,
        backend=None,
        plan=(),
    )
