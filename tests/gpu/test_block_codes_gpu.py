"""GGUF blocks on a GPU: products with their codes, compiled, and answers of a converted file."""

import gguf
import numpy as np
import pytest
import torch
from support.gguf_files import random_raw, tiny_gguf

from outrider import LLM, SamplingParams
from outrider.hub.download_progress import SilentReporter
from outrider.hub.gguf_convert import convert
from outrider.ops.compiled.block_kind import KINDS
from outrider.ops.compiled.gguf_rows import GgufRows
from outrider.ops.linear.block_codes import codes_of_blocks
from outrider.ops.linear.kernel_weight import kernel_weight
from outrider.ops.linear.quantised_linear import QuantisedLinear

CUDA = torch.device("cuda")


@pytest.mark.parametrize("kind", KINDS)
def test_products_are_those_of_the_numbers_in_any_batch(kind):
    raw = random_raw(np.random.default_rng(3), 256, kind, columns=1024, scale=2.0**-6)
    values = torch.from_numpy(gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])).cuda()
    weight = codes_of_blocks(GgufRows(kind, torch.from_numpy(raw))).to(CUDA)
    layer = QuantisedLinear(kernel_weight(weight))
    x = torch.randn(200, 1024, device="cuda").bfloat16()
    right = x.double() @ values.bfloat16().double().t()
    found = layer(x)
    assert (found.double() - right).norm() / right.norm() < 0.01
    for rows in (1, 20, 70, 140):
        assert torch.equal(layer(x[:rows]), found[:rows]), rows


def test_a_converted_file_keeps_its_codes(tmp_path):
    convert(tiny_gguf("llama", kind="Q4_K").write(tmp_path / "a.gguf"), tmp_path, SilentReporter())
    llm = LLM(tmp_path, device="cuda", draft="none", kv_tokens=256, max_num_seqs=1)
    stored = {each.modules: each.storage for each in llm.weight_storage}
    assert (stored["gate_proj, up_proj"], stored["down_proj"]) == ("int4", "int4")
    llm.generate(["ab"], SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
