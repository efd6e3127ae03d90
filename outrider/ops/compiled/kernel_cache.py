"""numba's decorators with a cache on disk that no change of our files makes stale.

A compiled function contains the code of the functions that it calls, and the constants that it
reads, from any of our files. numba's cache compares a function's own file alone. So the cache is a
folder whose name is a hash of all these files, of the compiler's version and of the CPU.
"""

import hashlib
import logging
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Protocol, TypeVar, cast

import llvmlite
import llvmlite.binding as llvm
import numba
from numba import config

from outrider.hub.cache_location import kernel_root

_log = logging.getLogger(__name__)

_OPS = Path(__file__).parents[1]
_HASH_CHARS = 16
_names: dict[int, str] = {}  # of callbacks, by address

Function = TypeVar("Function", bound=Callable[..., object])


class Callback(Protocol):
    """A compiled function that is called by its address."""

    address: int


def compiled(*signatures: str, fastmath: Collection[str] = ()) -> Callable[[Function], Function]:
    """`numba.njit`; with signatures it compiles at once, else at the first call."""

    def decorate(function: Function) -> Function:
        with _own_cache() as has_cache:
            options = {"cache": has_cache, "error_model": "numpy", "fastmath": set(fastmath)}
            return cast(Function, numba.njit(list(signatures) or None, **options)(function))

    return decorate


def callback(signature: object) -> Callable[[Callable[..., object]], Callback]:
    """`numba.cfunc`, which compiles at once."""

    def decorate(function: Callable[..., object]) -> Callback:
        with _own_cache() as has_cache:
            make = numba.cfunc(signature, cache=has_cache, error_model="numpy")
            made = cast(Callback, make(function))
        _names[made.address] = function.__name__
        return made

    return decorate


def name_of(address: int) -> str:
    """The name of the compiled function at this address."""
    return _names[address]


def kernel_sources() -> list[Path]:
    """All files whose code or constants compiled functions contain."""
    return sorted(_OPS.glob("compiled/*.py"))


def hash_of_kernels(sources: Collection[Path]) -> str:
    """Another for other sources, another compiler or another CPU.

    With Intel's SVML, code calls functions of that library.
    """
    target = (config.CPU_NAME, config.CPU_FEATURES, llvm.get_host_cpu_name(), config.USING_SVML)
    features = llvm.get_host_cpu_features().flatten()
    parts = [f"{numba.__version__} {llvmlite.__version__} {target} {features}".encode()]
    for path in sources:
        parts += path.name.encode(), path.read_bytes()
    lengths = ",".join(str(len(part)) for part in parts)
    return hashlib.sha256(b"".join([lengths.encode(), *parts])).hexdigest()[:_HASH_CHARS]


@cache
def kernel_folder() -> Path | None:
    """The folder for compiled functions; None where it cannot be written to."""
    try:
        folder = kernel_root() / f"kernels-{hash_of_kernels(kernel_sources())}"
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        _log.warning(
            "CPU kernels are compiled at every start, about 25 s: %s; "
            "set OUTRIDER_CACHE to a folder that can be written to",
            error,
        )
        return None
    return folder


@contextmanager
def _own_cache() -> Iterator[bool]:
    """Let numba use our folder for functions decorated inside; yields whether there is one.

    numba reads these settings when a function is decorated. They are put back, so that functions
    of other packages stay where the user wants them.
    """
    folder = kernel_folder()
    wanted = {"CACHE_DIR": str(folder or ""), "CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator"}
    before = {name: vars(config)[name] for name in wanted if name in vars(config)}
    vars(config).update({name: wanted[name] for name in before})
    try:
        yield folder is not None
    finally:
        vars(config).update(before)
