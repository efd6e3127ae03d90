"""Compiles the quantised product of warps that take turns for a Hopper, without a GPU.

python -m support.turns_compile KIND:ROWS ... prints what the assembler says, a line per kernel.
"""

import json
import re
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from outrider.ops.linear.kernel_weight import kernel_weight
from outrider.ops.linear.turns_linear_triton import _turns_kernel
from outrider.ops.linear.turns_tiles_triton import choose_turns_tile
from support.hopper_compile import assembler_log

ENDINGS = {"": (False, False), "residual": (False, True), "gated": (True, False)}
# Slices of a tile: a block of threads for each, one block for slice after slice, a single one.
SLICES = {"": "split", "residual": "chained", "gated": "one"}
POINTERS = {"words": "*i32", "factors": "*fp32", "residual": "*bf16", "out": "*bf16"}
POINTERS |= {"partial": "*fp32", "arrivals": "*i32"}


def compile_turns(weight, rows, *, is_gated, has_residual, slices):
    tile = choose_turns_tile(rows, weight, has_residual=has_residual)
    sizes = ("N", "K", "slice_size", "unit_size")
    constants = {
        "KIND": weight.kind,
        "GROUP": weight.scales.group,
        "FORM": weight.scales.form,
        "HAS_FACTORS": len(weight.scales.factors) > 0,
        "IS_GATED": is_gated,
        "HAS_RESIDUAL": has_residual,
        "IS_SPLIT": slices == "split",
        "IS_CHAINED": slices == "chained",
        "STAGES": tile.stages,
        "PDL": True,
    }
    width = weight.codes[0, 0, 0].nbytes // 4
    descriptors = {
        "x": descriptor(tile.rows, 128, gl.bfloat16),
        "codes": descriptor(32, width, gl.int32),
        "words_of_blocks": descriptor(1, 32, gl.int32),
    }
    signature = {
        name: "constexpr" if name in constants else (descriptors | POINTERS).get(name, "i32")
        for name in _turns_kernel.arg_names
    }
    place = list(signature).index
    source = GluonASTSource(
        _turns_kernel,
        signature=signature,
        constexprs={(place(name),): value for name, value in constants.items()},
        attrs={(place(n),): [["tt.divisibility", 16]] for n in (*POINTERS, *sizes)},
    )
    options = {"num_warps": 4, "launch_pdl": True}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def descriptor(rows, columns, dtype):
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], dtype)
    name = "bf16" if dtype == gl.bfloat16 else "i32"
    return f"tensordesc<{name}[{rows}, {columns}],{layout!r}>"


def main():
    from benchmarks.kernels.quantised_weights import random_codes

    for word in sys.argv[1:]:
        kind, rows = word.split(":")
        weight = kernel_weight(random_codes(kind, 64, 256))
        for ending, (is_gated, has_residual) in ENDINGS.items():
            made = compile_turns(
                weight, int(rows), is_gated=is_gated, has_residual=has_residual,
                slices=SLICES[ending],
            )  # fmt: skip
            log = assembler_log(ptx := made.asm["ptx"])
            facts = {
                "kernel": f"{kind} {rows} {ending}",
                "shared_bytes": made.metadata.shared,
                "spilled_bytes": sum(int(each) for each in re.findall(r"(\d+) bytes spill", log)),
                "is_serialized": "serialized" in log,
                "registers": int(re.findall(r"Used (\d+) registers", log)[0]),
                "asked": sorted({int(n) for n in re.findall(r"setmaxnreg\S+\s+(\d+)", ptx)}),
            }
            print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
