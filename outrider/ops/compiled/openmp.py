"""torch's own OpenMP: its parallel regions, and for compiled functions the place in a team.

Two pools of threads on the same cores would wait for each other, and torch's threads spin for a
while after every operation. So compiled functions run on torch's own pool, which is GNU OpenMP in
torch's wheels for Linux; with another one the import of this file fails.
"""

import ctypes
from pathlib import Path

import llvmlite.binding as llvm
import torch
from numba import types

_SYMBOLS = {  # our names, because another OpenMP may be in the process
    "outrider_thread_index": "omp_get_thread_num",
    "outrider_num_threads": "omp_get_num_threads",
}
_PARALLEL = "GOMP_parallel"

# For compiled functions: the place of this thread, and the size of the team.
thread_index = types.ExternalFunction("outrider_thread_index", types.int32())
num_threads = types.ExternalFunction("outrider_num_threads", types.int32())


def _openmp_of_torch() -> ctypes.CDLL:
    """torch's own library. Its symbols include those of the OpenMP library that it is linked to.

    Other packages may have loaded other copies of OpenMP, so a library is not looked for by name.
    """
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    try:
        functions = {ours: library[theirs] for ours, theirs in _SYMBOLS.items()}
        library[_PARALLEL]
    except AttributeError as error:
        raise ImportError("torch does not compute with the threads of GNU OpenMP") from error
    for ours, function in functions.items():
        llvm.add_symbol(ours, ctypes.cast(function, ctypes.c_void_p).value)
    return library


def _parallel_call() -> "ctypes._NamedFuncPointer":
    call = _openmp_of_torch()[_PARALLEL]
    call.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    call.restype = None
    return call


# Takes a function's address, that of its array, the number of threads, and 0. Runs the function
# once on every thread.
parallel = _parallel_call()
