"""Compiles the kernels that read quantised weights for a Hopper, on a machine without a GPU.

python -m support.quantised_compile KIND ... prints what the assembler says, a line per kernel.
"""

import json
import re
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from outrider.ops.linear.quantised_linear_triton import QuantisedTile, _quantised_kernel
from outrider.ops.moe.experts_triton import _grouped_kernel
from support.hopper_compile import assembler_log

CODES = {"e4m3": "*fp8e4nv"}
FORMS = {"int4": "float16", "mxfp4": "e8m0 of 32", "nvfp4": "e4m3"}
GROUPS = {"mxfp4": 32, "nvfp4": 16, "int8": 0}
TILES = [
    QuantisedTile(8, 16, 3, slices=4),
    QuantisedTile(8, 32, 6, num_warps=1),
    QuantisedTile(16, 64, 4),
    QuantisedTile(64, 128, 3, num_warps=8),
    QuantisedTile(128, 64, 3),
]


def compile_kernel(kernel, kind, tile, **own):
    constants = {
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "IS_EVEN": True,
        "PRECISION": "tf32",
        "PDL": True,
        "COMPILED": True,
        "KIND": "e2m1" if kind in ("mxfp4", "nvfp4") else kind,
        "GROUP": GROUPS.get(kind, 128),
        "FORM": FORMS.get(kind, "float32"),
        "HAS_ZEROS": False,
        "HAS_FACTORS": kind == "nvfp4",
        **own,
    }
    types = {"codes": CODES.get(kind, "*i32"), "words": "*i32", "zeros": "*i32"}
    types |= {"factors": "*fp32", "partial": "*fp32", "arrivals": "*i32"}
    types |= {"x": "*bf16", "residual": "*bf16", "out": "*bf16", "rows": "*i32", "owners": "*i32"}
    types |= {"bias": "*bf16"}
    signature = {
        name: "constexpr" if name in constants else types.get(name, "i32")
        for name in kernel.arg_names
    }
    if "limit" in signature:
        signature["limit"] = "fp32"
    aligned = [*types, "N", "K", "x_stride", "slice_size"]
    place = list(signature).index
    source = ASTSource(
        kernel,
        signature=signature,
        constexprs={(place(name),): value for name, value in constants.items()},
        attrs={(place(n),): [["tt.divisibility", 16]] for n in aligned if n in signature},
    )
    options = {"num_warps": tile.num_warps, "num_stages": tile.stages, "launch_pdl": True}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def facts(made, name):
    ptx, log = made.asm["ptx"], assembler_log(made.asm["ptx"])
    return {
        "kernel": name,
        "shared_bytes": made.metadata.shared,
        "spilled_bytes": sum(int(each) for each in re.findall(r"(\d+) bytes spill", log)),
        "copies": ptx.count("cp.async.cg.shared"),
        # Of the loop: what moves between threads, and what is read in pieces of 16 bytes.
        "moves": ptx.count("stmatrix") + ptx.count("st.shared"),
        "reads": ptx.count("ld.shared.v4"),
    }


def main():
    for kind in sys.argv[1:]:
        own = {"IS_WHOLE": True, "IS_GATED": False, "HAS_RESIDUAL": True}
        for tile in TILES:
            way = {"IS_SPLIT": tile.slices == 1, "SLICES": tile.slices}
            made = compile_kernel(_quantised_kernel, kind, tile, **own, **way)
            print(json.dumps(facts(made, f"linear {kind} {tile.rows}")), flush=True)
        own = {"PAIRS_PER_ROW": 2, "IS_LIMITED": True, "IS_GATED": True, "DEPTH": 128}
        own |= {"ALPHA": 1.702, "SHIFT": 1.0, "HAS_BIAS": True}  # as in gpt-oss
        made = compile_kernel(_grouped_kernel, kind, TILES[2], **own)
        print(json.dumps(facts(made, f"experts {kind}")), flush=True)


if __name__ == "__main__":
    main()
