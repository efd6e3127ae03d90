"""Products with quantised weights, compiled: near float64, with bits that ignore the other rows."""

import pytest
import torch
from support.expert_cases import routing_of
from support.packed_folders import linear_by, write_packed
from support.packed_forms import FORMS, LARGE, quantised_of
from support.spoken import tiny_llama

from benchmarks.kernels.quantised_weights import random_codes
from outrider import LLM, SamplingParams
from outrider.ops import gpu_facts
from outrider.ops.linear.kernel_weight import kernel_weight
from outrider.ops.moe.expert_stack import stack_codes

pytest.importorskip("triton")
from outrider.ops.linear import quantised_linear_triton as kernels
from outrider.ops.linear.quantised_linear import QuantisedLinear, in_order
from outrider.ops.linear.turns_tiles_triton import TurnsTile, fits_turns
from outrider.ops.moe.experts_triton import add_experts_

KINDS = ["e4m3", "int8", "int4", "e2m1"]
# The last is widened first.
COUNTS = [1, 2, 8, 9, 16, 17, 32, 33, 64, 65, 127, 128, 129, 200, 512, 520]
CUDA = torch.device("cuda")


def draw(*shape, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


def assert_near(found, x, numbers):
    """Within the rounding of a result and of every number, which small groups have."""
    wide, numbers = x.double(), numbers.double()
    right, bound = wide @ numbers.t(), wide.abs() @ numbers.abs().t()
    eps = torch.finfo(found.dtype).eps
    assert ((found.double() - right).abs() <= eps * (right.abs() + bound / 4)).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", FORMS | LARGE)
def test_every_form_is_multiplied_with_its_numbers_in_any_batch(form, dtype):
    weight, values = quantised_of(form, 48, 160, device="cuda")
    torch.testing.assert_close(weight.widen().cpu(), values, rtol=0, atol=0)
    layer = QuantisedLinear(kernel_weight(weight))
    x, residual = draw(520, 160, dtype=dtype), draw(520, 48, dtype=dtype)
    product, total, gated = layer(x), layer.plus(x, residual), layer.swiglu(x)
    assert_near(product, x, values.cuda())
    for rows in (1, 20, 70, 140):
        assert torch.equal(layer(x[:rows]), product[:rows]), rows
    assert torch.equal(layer.plus(x[:1], residual[:1]), total[:1])
    assert torch.equal(layer.swiglu(x[:1]), gated[:1])


@pytest.mark.parametrize("form", FORMS | LARGE)
def test_slices_of_every_form_have_the_same_bits_by_warps_and_by_blocks_of_threads(form):
    weight, values = quantised_of(form, 48, 1152, device="cuda")  # two slices, one shorter
    layer, x = QuantisedLinear(kernel_weight(weight)), draw(20, 1152)
    product = layer(x)
    assert_near(product, x, values.cuda())
    for rows in (1, 8):
        assert torch.equal(layer(x[:rows]), product[:rows]), rows


@pytest.mark.parametrize("size", [(6144, 4096), (4096, 14336), (28672, 4096), (960, 640)])
@pytest.mark.parametrize("kind", KINDS)
def test_real_sizes_have_the_same_bits_in_any_batch(kind, size):
    weight = random_codes(kind, *size, device=CUDA)
    layer = QuantisedLinear(kernel_weight(weight))
    x, residual = draw(COUNTS[-1], size[1]), draw(COUNTS[-1], size[0])
    assert fits_turns(x, layer.weight, is_gated=True) == gpu_facts.is_tested_hopper(x)
    product, gated, total = layer(x), layer.swiglu(x), layer.plus(x, residual)
    assert_near(product[:8], x[:8], weight.widen())
    for count in COUNTS:
        rows = slice(0, count)
        assert torch.equal(layer(x[rows]), product[rows]), count
        assert torch.equal(layer.plus(x[rows], residual[rows]), total[rows]), count
        assert torch.equal(layer.swiglu(x[rows]), gated[rows]), count


ENDINGS = {16: {}, 32: {"is_gated": True}, 64: {"has_residual": True}, 128: {}}  # by rows


@pytest.mark.parametrize("size", [(192, 160), (448, 1152)])  # one slice, and two
@pytest.mark.parametrize("row_tiles", [1, 2, 3])  # slices side by side; with three, in turn
@pytest.mark.parametrize("form", FORMS | LARGE)
def test_warps_that_take_turns_have_the_bits_of_other_tiles(form, row_tiles, size):
    weight = kernel_weight(quantised_of(form, *size, device="cuda")[0])
    x, residual = in_order(draw(400, size[1]), weight), draw(400, size[0])
    if not fits_turns(x, weight, is_gated=True):
        pytest.skip("this form has other kernels")
    for tile_rows, ending in ENDINGS.items():
        rows = slice(0, row_tiles * tile_rows - 3)
        args = x[rows], weight, residual[rows], kernels.no_arrivals(weight)
        plain = kernels.multiply_quantised(*args, **ending, tile=kernels.QuantisedTile(16, 64, 2))
        turns = TurnsTile(rows=tile_rows, stages=3)
        found = kernels.multiply_quantised(*args, **ending, tile=turns)
        assert torch.equal(found, plain), turns


@pytest.mark.parametrize("kind", KINDS)
def test_experts_are_near_dense_experts_and_have_the_same_bits_in_any_batch(kind):
    num, hidden, intermediate, tokens = 8, 1024, 256, 300
    shapes = [(num, 2 * intermediate, hidden), (num, hidden, intermediate)]
    stacks, numbers = [], []
    for shape in shapes:
        parts = [random_codes(kind, *shape[1:], seed=seed) for seed in range(num)]
        stacks.append(stack_codes(parts, shape, CUDA))
        wide = torch.stack([part.to(CUDA).widen() for part in parts])
        numbers.append(wide.bfloat16())
    x, residual = draw(tokens, hidden), draw(tokens, hidden, seed=1)
    experts, weights = routing_of(tokens, num, 2, device="cuda")
    whole, dense = residual.clone(), residual.clone()
    add_experts_(x, experts, weights, *stacks, whole)
    add_experts_(x, experts, weights, *numbers, dense)
    torch.testing.assert_close(whole.float(), dense.float(), rtol=2**-5, atol=2**-5)
    for count in (1, 5, 40):
        ours = residual[:count].clone()
        add_experts_(x[:count], experts[:count], weights[:count], *stacks, ours)
        assert torch.equal(ours, whole[:count]), count


@pytest.mark.parametrize("form", ["fp8 blocks", "GPTQ v2", "NVFP4"])
def test_drafts_change_no_token_of_a_quantised_model(form, tmp_path):
    source, packed, plain = (tmp_path / name for name in ("source", "packed", "plain"))
    tiny_llama().save_pretrained(source)
    packer, config = FORMS[form]
    write_packed(source, linear_by(packer), config, packed, plain)
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=24, ignore_eos=True)
    prompts = [{"prompt_token_ids": [3, 4, 5, 3, 4, 5, 3, 4]}, {"prompt_token_ids": [7] * 40}]
    answers = [
        [one.outputs[0].token_ids for one in llm.generate(prompts, params)]
        for llm in (
            LLM(folder, draft=draft, adaptive=False, device="cuda", kv_tokens=512, max_num_seqs=2)
            for folder, draft in ((packed, "ngram"), (packed, "none"))
        )
    ]
    assert answers[0] == answers[1]


def test_a_quantised_weight_takes_its_stored_bytes():
    weight = random_codes("int4", 4096, 4096).to(CUDA)
    before = torch.cuda.memory_allocated()
    layer = QuantisedLinear(kernel_weight(weight))
    assert torch.cuda.memory_allocated() - before <= weight.codes.nbytes + (1 << 20)
    assert layer.weight.nbytes < 4096 * 4096 * 0.6
