"""Compiles the kernels that read quantised weights for a Hopper, on a machine without a GPU.

python -m support.quantised_compile KIND ... prints what the assembler says, a line per kernel.
"""

import json
import re
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from outrider.ops.linear.linear_triton import LinearTile, _linear_kernel
from outrider.ops.moe.experts_triton import _grouped_kernel
from support.hopper_compile import assembler_log

CODES = {"e4m3": "*fp8e4nv", "int8": "*i8", "int4": "*u8", "mxfp4": "*u8", "nvfp4": "*u8"}
FORMS = {"int4": "float16", "mxfp4": "e8m0", "nvfp4": "e4m3"}
GROUPS = {"mxfp4": 32, "nvfp4": 16}
TILES = [LinearTile(16, 32, 128, 4), LinearTile(64, 64, 128, 4), LinearTile(128, 64, 128, 3)]


def compile_kernel(kernel, kind, tile, **own):
    constants = {
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "DEPTH": tile.depth,
        "IS_GATED": True,
        "IS_EVEN": True,
        "PRECISION": "tf32",
        "PDL": True,
        "KIND": "e2m1" if kind in GROUPS else kind,
        "GROUP": GROUPS.get(kind, 128),
        "FORM": FORMS.get(kind, "float32"),
        "HAS_ZEROS": False,
        "HAS_FACTORS": kind == "nvfp4",
        **own,
    }
    types = {"weight": CODES[kind], "words": "*i32", "zeros": "*i32", "factors": "*fp32"}
    types |= {"x": "*bf16", "residual": "*bf16", "out": "*bf16", "rows": "*i32", "owners": "*i32"}
    signature = {
        name: "constexpr" if name in constants else types.get(name, "i32")
        for name in kernel.arg_names
    }
    if "limit" in signature:
        signature["limit"] = "fp32"
    aligned = [*types, "N", "K", "x_stride"]
    place = list(signature).index
    source = ASTSource(
        kernel,
        signature=signature,
        constexprs={(place(name),): value for name, value in constants.items()},
        attrs={(place(n),): [["tt.divisibility", 16]] for n in aligned if n in signature},
    )
    options = {"num_warps": tile.num_warps, "num_stages": tile.stages, "launch_pdl": True}
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    log = assembler_log(made.asm["ptx"])
    return {
        "kernel": f"{kernel.__name__} {kind} {tile.rows}",
        "shared_bytes": made.metadata.shared,
        "spilled_bytes": sum(int(each) for each in re.findall(r"(\d+) bytes spill", log)),
        "copies": made.asm["ptx"].count("cp.async.cg.shared"),
        "loads": made.asm["ptx"].count("ld.global"),
    }


def main():
    for kind in sys.argv[1:]:
        for tile in TILES:
            linear = compile_kernel(_linear_kernel, kind, tile, HAS_RESIDUAL=False)
            print(json.dumps(linear), flush=True)
        own = {"PAIRS_PER_ROW": 2, "IS_LIMITED": True}
        print(json.dumps(compile_kernel(_grouped_kernel, kind, TILES[1], **own)), flush=True)


if __name__ == "__main__":
    main()
