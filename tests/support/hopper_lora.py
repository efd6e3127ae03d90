"""Compiles the LoRA kernels for a Hopper, on a machine without a GPU.

python -m support.hopper_lora prints what the assembler says, a line each.
"""

import json
import re

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from outrider.ops.linear import lora_triton
from support.hopper_compile import assembler_log

SIZES = {"ROWS": lora_triton._ROWS, "RANK": lora_triton._RANK}
SHRINK = SIZES | {"DEPTH": lora_triton._DEPTH}
EXPAND = SIZES | {"COLUMNS": lora_triton._COLUMNS}


def compile_lora(kernel, constants, element):
    constants = constants | {"PRECISION": "ieee" if element == "fp32" else "tf32"}
    kinds = dict.fromkeys(("x", "a", "b", "out"), f"*{element}")
    kinds |= {"low": "*fp32"} | dict.fromkeys(("order", "slots"), "*i64")
    names = kernel.arg_names
    signature = {
        name: "constexpr" if name in constants else kinds.get(name, "i32") for name in names
    }
    places = {(names.index(name),): value for name, value in constants.items()}
    aligned = {
        (names.index(name),): [["tt.divisibility", 16]]
        for name in ("x", "a", "b", "out", "low", "K", "N", "R")
        if name in names
    }
    source = ASTSource(kernel, signature, places, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    log = assembler_log(compiled.asm["ptx"])
    spilled = sum(int(each) for each in re.findall(r"(\d+) bytes spill", log))
    return {"shared_bytes": compiled.metadata.shared, "spilled_bytes": spilled}


def main():
    for element in ("bf16", "fp32"):
        for kernel, constants in (
            (lora_triton._shrink_kernel, SHRINK),
            (lora_triton._expand_kernel, EXPAND),
        ):
            print(json.dumps(compile_lora(kernel, constants, element)), flush=True)


if __name__ == "__main__":
    main()
