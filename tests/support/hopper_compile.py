"""Compiles the linear kernel of specialised warps for a Hopper, on a machine without a GPU.

python -m support.hopper_compile ROWSxOUTPUTS ... prints what the assembler says, a line each.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from outrider.ops.linear.specialized_linear_triton import _specialized_kernel
from outrider.ops.linear.specialized_tiles_triton import choose_specialized_tile

PTXAS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"


def compile_specialized(tile, *, has_residual):
    options = {"num_warps": 4, "launch_pdl": True}
    source = GluonASTSource(_specialized_kernel, **arguments(tile, has_residual))
    kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    log = assembler_log(kernel.asm["ptx"])
    spilled = sum(int(each) for each in re.findall(r"(\d+) bytes spill", log))
    return {"shared_bytes": kernel.metadata.shared, "spilled_bytes": spilled, "log": log}


def arguments(tile, has_residual):
    constants = {"MORE": tile.more, "STAGES": tile.stages, "HAS_RESIDUAL": has_residual}
    constants["PDL"] = True
    boxes = {"x": tile.rows, "rest": tile.more or tile.rows, "weight": tile.columns}
    signature = {name: descriptor(rows, tile.depth) for name, rows in boxes.items()}
    signature |= dict.fromkeys(("residual", "out"), "*bf16")
    signature |= dict.fromkeys(("num_rows", "N", "K", "num_tiles"), "i32")
    signature |= dict.fromkeys(constants, "constexpr")
    place = list(signature).index
    aligned = ("residual", "out", "N", "K")
    return {
        "signature": signature,
        "constexprs": {(place(name),): value for name, value in constants.items()},
        "attrs": {(place(name),): [["tt.divisibility", 16]] for name in aligned},
    }


def descriptor(rows, depth):
    layout = gl.NVMMASharedLayout.get_default_for([rows, depth], gl.bfloat16)
    return f"tensordesc<bf16[{rows}, {depth}],{layout!r}>"


def assembler_log(ptx):
    with TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        command = [PTXAS, "-v", "--gpu-name=sm_90a", source, "-o", Path(folder) / "kernel.cubin"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def main():
    for word in sys.argv[1:]:
        tile = choose_specialized_tile(*(int(number) for number in word.split("x")))
        for has_residual in (False, True):
            print(json.dumps(compile_specialized(tile, has_residual=has_residual)), flush=True)


if __name__ == "__main__":
    main()
