"""Products with quantised weights, compiled: their bits are those of dense weights."""

import pytest
import torch
from support.expert_cases import routing_of
from support.packed_folders import linear_by, write_packed
from support.packed_forms import FORMS, LARGE, quantised_of
from support.spoken import tiny_llama

from benchmarks.kernels.quantised_weights import random_codes
from outrider import LLM, SamplingParams
from outrider.ops.linear.kernel_weight import kernel_weight
from outrider.ops.linear.linear import FixedLinear
from outrider.ops.moe.expert_stack import stack_codes

pytest.importorskip("triton")
from outrider.ops.linear.quantised_linear import QuantisedLinear
from outrider.ops.linear.quantised_product_triton import widen_triton
from outrider.ops.moe.experts_triton import add_experts_

KINDS = ["e4m3", "int8", "int4", "e2m1"]
COUNTS = [1, 2, 16, 17, 32, 33, 64, 65, 127, 128, 129, 200, 300]
CUDA = torch.device("cuda")


def draw(*shape, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


def both(weight, dtype=torch.bfloat16):
    """A layer over the codes, and one over the numbers, rounded to the type of activations."""
    dense = FixedLinear(weight.widen_in_order().to(dtype))
    return QuantisedLinear(kernel_weight(weight), FixedLinear), dense


def in_codes_order(x, weight):
    return x[:, weight.order] if len(weight.order) else x


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", FORMS | LARGE)
def test_every_form_has_the_bits_of_its_numbers(form, dtype):
    weight, values = quantised_of(form, 48, 160, device="cuda")
    torch.testing.assert_close(weight.widen().cpu(), values, rtol=0, atol=0)
    for each in (dtype, torch.float32):
        wide = widen_triton(kernel_weight(weight), each)
        assert torch.equal(wide, weight.widen_in_order().to(each))
    ours, right = both(weight, dtype)
    for rows in (1, 20, 70, 140):
        x, residual = draw(rows, 160, dtype=dtype), draw(rows, 48, dtype=dtype)
        ordered = in_codes_order(x, weight)
        assert torch.equal(ours(x), right(ordered)), rows
        assert torch.equal(ours.plus(x, residual.clone()), right.plus(ordered, residual)), rows
        assert torch.equal(ours.swiglu(x), right.swiglu(ordered)), rows


@pytest.mark.parametrize("size", [(6144, 4096), (4096, 14336), (28672, 4096), (960, 640)])
@pytest.mark.parametrize("kind", KINDS)
def test_real_sizes_have_the_bits_of_dense_weights_in_any_batch(kind, size):
    weight = random_codes(kind, *size).to(CUDA)
    ours, right = both(weight)
    x, residual = draw(COUNTS[-1], size[1]), draw(COUNTS[-1], size[0])
    product, gated = right(x), right.swiglu(x)
    total = right.plus(x, residual.clone())
    for count in COUNTS:
        rows = slice(0, count)
        assert torch.equal(ours(x[rows]), product[rows]), count
        assert torch.equal(ours.plus(x[rows], residual[rows].clone()), total[rows]), count
        assert torch.equal(ours.swiglu(x[rows]), gated[rows]), count


@pytest.mark.parametrize("kind", KINDS)
def test_experts_have_the_bits_of_dense_experts(kind):
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
    for count in (1, 5, 40, 300):
        ours, right = residual[:count].clone(), residual[:count].clone()
        routing = experts[:count], weights[:count]
        add_experts_(x[:count], *routing, *stacks, ours)
        add_experts_(x[:count], *routing, *numbers, right)
        assert torch.equal(ours, right), count


@pytest.mark.parametrize("form", ["fp8 blocks", "GPTQ v2", "NVFP4"])
def test_a_quantised_model_gives_the_tokens_of_its_numbers(form, tmp_path):
    source, packed, plain = (tmp_path / name for name in ("source", "packed", "plain"))
    tiny_llama().save_pretrained(source)
    packer, config = FORMS[form]
    write_packed(source, linear_by(packer), config, packed, plain)
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=24, ignore_eos=True)
    prompts = [{"prompt_token_ids": [3, 4, 5, 3, 4, 5, 3, 4]}, {"prompt_token_ids": [7] * 40}]
    answers = [
        [one.outputs[0].token_ids for one in llm.generate(prompts, params)]
        for llm in (
            LLM(folder, draft=draft, device="cuda", kv_tokens=512, max_num_seqs=2)
            for folder, draft in ((packed, "ngram"), (packed, "none"), (plain, "none"))
        )
    ]
    assert answers[0] == answers[1] == answers[2]


def test_a_quantised_weight_takes_its_stored_bytes():
    weight = random_codes("int4", 4096, 4096).to(CUDA)
    before = torch.cuda.memory_allocated()
    layer = QuantisedLinear(kernel_weight(weight), FixedLinear)
    assert torch.cuda.memory_allocated() - before <= weight.codes.nbytes + (1 << 20)
    assert layer.weight.nbytes < 4096 * 4096 * 0.6
