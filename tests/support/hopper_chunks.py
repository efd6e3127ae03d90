"""Compiles the attention kernel of chunks for a Hopper, on a machine without a GPU.

python -m support.hopper_chunks HEAD_DIM:WINDOW:POOL ... prints the assembler's words, a line each.
POOL is the type of keys and values: bf16, fp8e4nv or fp8e5. HEAD_DIM:WINDOW:POOL:sinks has sinks.
"""

import json
import re
import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from outrider.ops.attention.prefill_triton import _attend_kernel, prefill_tiles
from support.hopper_compile import assembler_log

POINTERS = {"query": "*bf16", "out": "*bf16", "pages": "*i32", "bounds": "*i32", "sinks": "*fp32"}
ALIGNED = ("query", "layer", "out", "query_stride")


def compile_chunks(head_dim, window, pool, *, has_sinks):
    tiles = prefill_tiles(head_dim, torch.bfloat16)
    constants = {
        "GROUP": 4, "KV_HEADS": 8, "HEAD_DIM": head_dim, "DIM": head_dim, "PAGE_SIZE": 16,
        "CHUNKS": 1, "BLOCK_M": tiles.rows, "BLOCK_N": tiles.keys, "SPLIT": tiles.split,
        "WINDOW": window, "CAPPED": window > 0, "HAS_SINKS": has_sinks, "COMPILED": True,
        "PDL": True,
    }  # fmt: skip
    names = _attend_kernel.arg_names
    types = POINTERS | {"layer": f"*{pool}", "inner": "fp32", "scale": "fp32"}
    types |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(
        fn=_attend_kernel,
        signature={name: types.get(name, "i32") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in ALIGNED},
    )
    options = {"num_warps": tiles.num_warps, "num_stages": tiles.num_stages}
    options |= {"enable_fp_fusion": False, "launch_pdl": True}
    kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    log = assembler_log(kernel.asm["ptx"])
    spilled = sum(int(each) for each in re.findall(r"(\d+) bytes spill", log))
    return {"shared_bytes": kernel.metadata.shared, "spilled_bytes": spilled, "log": log}


if __name__ == "__main__":
    for word in sys.argv[1:]:
        head_dim, window, pool, *sinks = word.split(":")
        kernel = compile_chunks(int(head_dim), int(window), pool, has_sinks=bool(sinks))
        print(json.dumps(kernel), flush=True)
