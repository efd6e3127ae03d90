"""Whether this machine runs compiled kernels, and if not, why. Imports numba only when asked."""

import logging
from functools import cache
from importlib import import_module
from importlib.util import find_spec

import torch

_log = logging.getLogger(__name__)

_TEAM = "outrider.ops.compiled.thread_team"  # which runs the functions of all others
_MOST_CHARS = 300  # of an error; numba's can have pages


@cache
def why_not_compiled(module: str) -> str:
    """Why the compiled functions of this module cannot be used here; empty if they can."""
    if find_spec("numba") is None:
        return "numba is not installed; pip install numba"
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return "they need an x86 CPU with AVX2"
    try:
        for each in (_TEAM, module):
            import_module(each)  # compiles, or loads what was compiled
    except Exception as error:  # numba, LLVM and the files of the cache can fail in many ways
        what = f"{type(error).__name__}: {' '.join(str(error).split())[:_MOST_CHARS]}"
        _log.warning(
            "compiled CPU kernels are off, slower code runs: %s; "
            "update numba, or delete the folders kernels-* in OUTRIDER_CACHE",
            what,
        )
        return what
    return ""


def is_compiled(tensor: torch.Tensor, module: str) -> bool:
    """Whether what computes on this tensor has a form in this module that works here."""
    return tensor.device.type == "cpu" and not why_not_compiled(module)
