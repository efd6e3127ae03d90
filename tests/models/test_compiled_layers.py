"""All layers in one compiled region against the same layers part by part: equal bits."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from support.attention_cases import Model, make_case, ragged
from support.torch_threads import torch_threads

from outrider.kv.compiled_attention import CompiledAttention
from outrider.kv.reference_attention import ReferenceAttention
from outrider.models.decoder import AuxStates, DecoderLayer, LayerStack, stack_layers
from outrider.models.layers.attention_layer import (
    NO_FACTORS,
    AttentionStep,
    NoGate,
    SelfAttention,
    SplitProjection,
)
from outrider.models.layers.compiled_layers import compile_layers
from outrider.models.layers.gated_activation import SplitGate
from outrider.models.layers.mlp import FeedStep, Mlp
from outrider.models.layers.normed_linear import gate_behind, project_behind
from outrider.models.model_config import AttentionConfig
from outrider.ops.attention.attention_rule import WHOLE_TEXT, AttentionRule
from outrider.ops.linear.block_linear import eight_bit_linear
from outrider.ops.linear.dense_linear import DenseLinear
from outrider.ops.linear.linear import PlainLinear
from outrider.ops.norm_rope.head_norm import NoHeadNorm
from outrider.ops.norm_rope.rms_norm import make_norm
from outrider.ops.norm_rope.rotary import Rotation
from outrider.step.arena import Arena

MODEL = Model(kv_heads=2, group=2, head_dim=16, page_size=4)
CONFIG = AttentionConfig(heads=4, kv_heads=2, head_dim=16)
HIDDEN, MIDDLE, LAYERS = 96, 64, 3
LINEARS = {
    "blocks": eight_bit_linear,
    "float32": partial(DenseLinear, dtype=torch.float32),
    "bfloat16": partial(DenseLinear, dtype=torch.bfloat16),
    "float16": partial(DenseLinear, dtype=torch.float16),
}
CASES = {
    "a row": make_case(MODEL, lengths=[21]),
    "rows": make_case(MODEL, lengths=[0, 1, 15, 16, 31]),
    "trees": make_case(MODEL, lengths=[4, 0, 31], nodes=9),
    "ragged trees": ragged(make_case(MODEL, lengths=[4, 30], nodes=5), absent=[0, 3], padding=1),
    "chunks": make_case(MODEL, lengths=[5, 20], nodes=2, chunks={3: (17, 9), 4: (20, 3)}),
    "a chunk": make_case(MODEL, lengths=[], chunks={1: (3, 11)}),
}


def layer_of(input_size, linear=eight_bit_linear, window=WHOLE_TEXT):
    sizes = {"qkv": (CONFIG.heads + 2 * CONFIG.kv_heads) * CONFIG.head_dim, "gate_up": 2 * MIDDLE}
    qkv = linear(torch.randn(sizes["qkv"], input_size) / 8)
    apart = SplitProjection(CONFIG, qkv=qkv, head_norm=NoHeadNorm())
    attention_norm, project = project_behind(make_norm(torch.rand(input_size), 1e-5), apart)
    gate = SplitGate(linear(torch.randn(sizes["gate_up"], HIDDEN) / 8))
    mlp_norm, gate = gate_behind(make_norm(torch.rand(HIDDEN), 1e-5), gate)
    output = linear(torch.randn(HIDDEN, CONFIG.heads * CONFIG.head_dim) / 8)
    return DecoderLayer(
        attention_norm=attention_norm,
        attention=SelfAttention(
            project=project,
            gate=NoGate(),
            output=output,
            rule=AttentionRule(scale=CONFIG.head_dim**-0.5, window=window),
        ),
        mlp_norm=mlp_norm,
        mlp=Mlp(gate=gate, down=linear(torch.randn(HIDDEN, MIDDLE) / 8)),
    )


def layers_of(**options):
    torch.manual_seed(3)
    return [layer_of(HIDDEN, **options) for _ in range(LAYERS)]


class Run:
    """One run of a stack over a case: the stream, the aux states, and what the pools hold."""

    def __init__(
        self,
        stack,
        case,
        *,
        backend_kind=CompiledAttention,
        input_size=HIDDEN,
        growth=0.0,
        last_slot=None,
    ):
        backend = backend_kind(page_size=MODEL.page_size, dtype=MODEL.dtype)
        arena = Arena(torch.device("cpu"))
        backend.reserve(arena, case.shape)
        plan = backend.bind(arena, case.shape)
        backend.fill(plan, case.scope)
        torch.manual_seed(5)
        num = case.shape.num_query
        slots = torch.randperm(case.layer.shape[0] * MODEL.page_size)[:num]
        if last_slot is not None:
            slots[-1] = last_slot
        angles = torch.randn(num, 1, CONFIG.head_dim)
        step = AttentionStep(
            rotation=Rotation(angles.cos(), angles.sin()),
            slots=slots,
            backend=backend,
            plan=plan,
            query_factors=1.0 + growth * torch.rand(num) if growth else NO_FACTORS,
        )
        feed = FeedStep(tokens=slots, slots=slots, page_size=MODEL.page_size)
        aux = AuxStates(layers=(0, 2, 2), out=torch.zeros(num, 4 * HIDDEN))
        stream = torch.randn(num, HIDDEN)
        x = stream if input_size == HIDDEN else torch.randn(num, input_size)
        self.pools = [case.layer.clone() for _ in range(LAYERS)]
        pools = self.pools[: 1 if input_size != HIDDEN else LAYERS]
        self.stream = stack(x, stream, pools, steps=[step], feed=feed, aux=aux)
        self.aux = aux.out

    def __eq__(self, other):
        mine, theirs = ([run.stream, run.aux, *run.pools] for run in (self, other))
        return all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
@pytest.mark.parametrize("linear", LINEARS.values(), ids=list(LINEARS))
def test_a_region_has_the_bits_of_its_parts(linear, case, threads):
    layers = layers_of(linear=linear)
    with torch_threads(threads):
        fused, apart = Run(stack_layers(layers), case), Run(LayerStack(layers, None), case)
    assert fused == apart
    assert apart.stream.isfinite().all()
    assert apart.pools[2].ne(case.layer).any()
    assert apart.aux[:, HIDDEN : 3 * HIDDEN].any()
    assert not apart.aux[:, 3 * HIDDEN :].any()


@pytest.mark.parametrize("slot", [1 << 20, -1])
def test_a_slot_outside_of_the_pool_ends_the_step_and_not_the_process(slot):
    stack = stack_layers(layers_of())
    with pytest.raises(IndexError, match="outside of the KV pool"):
        Run(stack, CASES["rows"], last_slot=slot)


def test_layers_of_a_region_may_have_other_kinds_of_weights():
    torch.manual_seed(3)
    layers = [layer_of(HIDDEN, linear=linear) for linear in LINEARS.values()][:LAYERS]
    assert Run(stack_layers(layers), CASES["rows"]) == Run(LayerStack(layers, None), CASES["rows"])


def test_the_layer_of_a_head_reads_another_input_than_its_residual():
    torch.manual_seed(3)
    layers = [layer_of(2 * HIDDEN)]
    run = {"input_size": 2 * HIDDEN}
    fused = Run(stack_layers(layers), CASES["rows"], **run)
    assert fused == Run(LayerStack(layers, None), CASES["rows"], **run)


def test_a_step_with_another_attention_runs_part_by_part():
    layers, case = layers_of(), CASES["rows"]
    out = Run(stack_layers(layers), case, backend_kind=ReferenceAttention)
    assert out == Run(LayerStack(layers, None), case, backend_kind=ReferenceAttention)


def test_layers_with_other_parts_are_no_region():
    parts = [(layer.attention, layer.mlp) for layer in layers_of()]
    assert compile_layers(parts) is not None
    wide = [(layer.attention, layer.mlp) for layer in layers_of(linear=PlainLinear)]
    assert compile_layers([*parts, wide[0]]) is None
    larger = layer_of(2 * HIDDEN)
    assert compile_layers([*parts, (larger.attention, larger.mlp)]) is None
    assert compile_layers([]) is None


def test_numbers_that_are_not_finite_stay_in_their_row():
    layers, case = layers_of(), CASES["rows"]
    expected = Run(stack_layers(layers), case)
    # Row 2 sees a key that is not finite, and no other row does.
    bad = case.layer.clone()
    page = case.scope.page_table[3, 0]
    bad[page] = torch.nan
    found = Run(stack_layers(layers), replace(case, layer=bad))
    assert found.stream[2].isnan().all()
    others = [0, 1, 3, 4]
    assert torch.equal(found.stream[others], expected.stream[others])


def test_layers_with_sliding_windows_see_their_windows():
    layers = [*layers_of()[1:], layer_of(HIDDEN, window=5)]
    assert Run(stack_layers(layers), CASES["rows"]) == Run(LayerStack(layers, None), CASES["rows"])
    assert compile_layers([(layer.attention, layer.mlp) for layer in layers]) is None


def test_scores_that_grow_with_positions_grow():
    layers, case = layers_of(), CASES["rows"]
    grown = Run(stack_layers(layers), case, growth=2.0)
    assert grown == Run(LayerStack(layers, None), case, growth=2.0)
    assert grown != Run(stack_layers(layers), case)
