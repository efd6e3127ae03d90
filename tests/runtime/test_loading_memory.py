"""While a model is loaded, it takes the memory of the finished model and less than one shard."""

import json
import math
import subprocess
import sys
from functools import cache

import pytest
import torch
from safetensors.torch import save_file

HIDDEN, WIDE, LAYERS, VOCAB = 768, 2048, 14, 4096
# A process also holds 32 MB of its files while it loads: small forms have one file of more.
NUM_SHARDS = {"bfloat16": 3, "fp8": 1, "int4": 1}
GROUP = 32  # inputs of int4
MB = 1e6
CONFIGS = {
    "bfloat16": {},
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "int4": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"all": {"weights": {"num_bits": 4, "type": "int", "group_size": GROUP}}},
    },
}
CHILD = """
import gc
import sys
from pathlib import Path

from outrider.config.engine_config import EngineConfig
from outrider.config.process_heap import release_free_memory
from outrider.runtime.model_home import ModelHome

def kilobytes(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field))

config = EngineConfig(dtype=sys.argv[2], device="cpu")
ModelHome(Path(sys.argv[1]), config)._load_models()  # libraries and compiled loops stay
gc.collect()
release_free_memory()
home = ModelHome(Path(sys.argv[1]), config)
with open("/proc/self/clear_refs", "w") as refs:
    refs.write("5")  # the highest use begins anew
before = kilobytes("VmRSS")
models = home._load_models()
peak = kilobytes("VmHWM")
release_free_memory()
print(1024 * (peak - before), 1024 * (kilobytes("VmRSS") - before))
"""


def shapes():
    layer = {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (HIDDEN // 2, HIDDEN),
        "self_attn.v_proj": (HIDDEN // 2, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (WIDE, HIDDEN),
        "mlp.up_proj": (WIDE, HIDDEN),
        "mlp.down_proj": (HIDDEN, WIDE),
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
    }
    yield "model.embed_tokens", (VOCAB, HIDDEN)
    for index in range(LAYERS):
        for name, shape in layer.items():
            yield f"model.layers.{index}.{name}", shape
    yield "model.norm", (HIDDEN,)
    yield "lm_head", (VOCAB, HIDDEN)


def stored(module, shape, form, generator):
    """Random tensors of one weight."""
    if form == "bfloat16" or not module.endswith("proj"):
        numbers = torch.randn(shape, generator=generator) * 0.02
        return {f"{module}.weight": numbers.bfloat16()}
    rows, columns = shape
    if form == "fp8":
        codes = torch.randint(0, 120, shape, generator=generator, dtype=torch.uint8)
        scales = torch.rand(-(-rows // 128), -(-columns // 128), generator=generator) * 1e-4
        weight = codes.view(torch.float8_e4m3fn)
        return {f"{module}.weight": weight, f"{module}.weight_scale_inv": scales}
    words = torch.randint(0, 1 << 31, (rows, columns // 8), generator=generator)
    return {
        f"{module}.weight_packed": words.int(),
        f"{module}.weight_scale": torch.rand(rows, columns // GROUP, generator=generator).half()
        / 999,
        f"{module}.weight_shape": torch.tensor(shape),
    }


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """A model of 91 million parameters, by its form."""

    @cache
    def write(form):
        folder, generator = tmp_path_factory.mktemp(form), torch.Generator().manual_seed(0)
        num, weight_map, named = NUM_SHARDS[form], {}, list(shapes())
        shards = [{} for _ in range(num)]
        for place, (module, shape) in enumerate(named):
            shard = place * num // len(named)
            tensors = stored(module, shape, form, generator)
            shards[shard] |= tensors
            weight_map |= dict.fromkeys(tensors, f"model-{shard}.safetensors")
        for place, tensors in enumerate(shards):
            save_file(tensors, folder / f"model-{place}.safetensors")
        index = folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": weight_map}))
        write_config(folder, CONFIGS[form])
        return folder

    return write


def write_config(folder, quantization):
    fields = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": HIDDEN,
        "intermediate_size": WIDE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 12,
        "num_key_value_heads": 6,
        "vocab_size": VOCAB,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    if quantization:
        fields["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(fields))


CASES = {
    "bfloat16 as it is": ("bfloat16", "bfloat16"),
    "bfloat16, widened": ("bfloat16", "float32"),
    "fp8, widened": ("fp8", "bfloat16"),
    "int4 in codes": ("int4", "packed"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_peak_is_the_finished_model_and_less_than_a_shard(folder_of, case):
    form, dtype = CASES[case]
    folder = folder_of(form)
    child = [sys.executable, "-c", CHILD, str(folder), dtype]
    done = subprocess.run(child, capture_output=True, text=True, check=True, timeout=120)
    peak, after = map(int, done.stdout.split()[-2:])
    sizes = [path.stat().st_size for path in folder.glob("*.safetensors")]
    assert peak <= after + max(sizes), f"{peak / MB:.0f} MB for {after / MB:.0f} MB"
    if dtype in (form, "packed"):  # what is stored is what is held
        assert peak <= sum(sizes) + widened_bytes(form) + max(sizes)


def widened_bytes(form):
    """What a CPU holds more than is stored: float32 embeddings, head and scales of codes."""
    if form == "bfloat16":
        return 0
    groups = sum(math.prod(shape) // GROUP for name, shape in shapes() if name.endswith("proj"))
    return 2 * 2 * VOCAB * HIDDEN + (2 + 2) * groups  # with zero points of 2 bytes
