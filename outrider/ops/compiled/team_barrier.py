"""The barrier of a team, for compiled functions: a thread spins for a moment, and then sleeps.

OpenMP's own barrier follows a policy that holds for the whole process and cannot be changed later.
A step has 150 barriers. If threads sleep at each of them, a step of packed weights takes two to
three times as long. If they only spin, threads that wait take the time of those that work, where
several processes share the cores.
"""

import ctypes
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from outrider.ops.compiled.atomic_numbers import atomic_add, atomic_load, atomic_store
from outrider.ops.compiled.kernel_cache import callback, compiled
from outrider.ops.compiled.openmp import num_threads
from outrider.ops.compiled.vector_ir import INT64, declared

_SPIN_TICKS = 250_000  # 60 to 120 us: threads that have their cores seldom wait longer
_LATE_TICKS = 50_000  # 12 to 25 us: threads with equal work are seldom so far apart
_LINE = 64  # bytes of a cache line: numbers that different threads write have lines of their own
_COME, _TURN, _ASLEEP, _FIRST, _RELEASED, _LAG = (place * _LINE for place in range(6))
_NUM_LINES = 6
_FUTEX, _WAIT_PRIVATE, _WAKE_PRIVATE, _ALL = 202, 128, 129, 1 << 30  # Linux on x86-64
_STATE = "outrider_barrier_state"
_NOTHING = types.void()

_libc = ctypes.CDLL(None)
_memory = (ctypes.c_char * ((_NUM_LINES + 1) * _LINE))()
_address = -(-ctypes.addressof(_memory) // _LINE) * _LINE
llvm.add_symbol(_STATE, _address)
llvm.add_symbol("outrider_syscall", ctypes.cast(_libc.syscall, ctypes.c_void_p).value)
_system_call = types.ExternalFunction("outrider_syscall", types.intp(*[types.intp] * 5))


@intrinsic  # type: ignore[untyped-decorator]
def _state(context: Any) -> Any:
    """The address of the state: a symbol, because it differs between processes."""
    del context

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        del context, signature, arguments
        state = builder.module.globals.get(_STATE)
        if state is None:
            state = ir.GlobalVariable(builder.module, INT64, _STATE)
        return builder.ptrtoint(state, INT64)

    return types.intp(), generate


@intrinsic  # type: ignore[untyped-decorator]
def _ticks(context: Any) -> Any:
    """The core's time stamp counter."""
    del context

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        del context, signature, arguments
        return builder.call(declared(builder.module, "llvm.readcyclecounter", INT64, []), [])

    return types.int64(), generate


@intrinsic  # type: ignore[untyped-decorator]
def _pause(context: Any) -> Any:
    """Tell the core that this thread spins."""
    del context

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        del context, signature, arguments
        builder.call(declared(builder.module, "llvm.x86.sse2.pause", ir.VoidType(), []), [])
        return ir.Constant(INT64, 0)

    return types.int64(), generate


@compiled()
def _release(now: int, had_equal_work: bool) -> None:
    """Let the team go on, and add its lag. A first thread may not have written its time yet."""
    first, released = atomic_load(_state() + _FIRST), atomic_load(_state() + _RELEASED)
    if had_equal_work and first > released and now - first > _LATE_TICKS:
        atomic_add(_state() + _LAG, now - first)
    atomic_store(_state() + _RELEASED, now)
    atomic_store(_state() + _COME, 0)
    atomic_add(_state() + _TURN, 1)  # ordered before the load below, as a store would not be
    if atomic_load(_state() + _ASLEEP):
        _system_call(_FUTEX, _state() + _TURN, _WAKE_PRIVATE, _ALL, 0)


@compiled()
def _wait_for(turn: int, until: int) -> None:
    """Wait until the turn is another one."""
    turn_at = _state() + _TURN
    while _ticks() < until:
        if atomic_load(turn_at) != turn:
            return
        _pause()
    atomic_add(_state() + _ASLEEP, 1)
    while atomic_load(turn_at) == turn:  # the kernel compares 32 bits with the turn again
        _system_call(_FUTEX, turn_at, _WAIT_PRIVATE, turn, 0)
    atomic_add(_state() + _ASLEEP, -1)


@compiled()
def _wait(had_equal_work: bool) -> None:
    """A turn ends when all threads have come."""
    if num_threads() == 1:
        return
    turn, now = atomic_load(_state() + _TURN), _ticks()
    before = atomic_add(_state() + _COME, 1)
    if before == num_threads() - 1:
        _release(now, had_equal_work)
        return
    if before == 0:
        atomic_store(_state() + _FIRST, now)
    _wait_for(turn, now + _SPIN_TICKS)


@callback(_NOTHING)
def _wait_for_team() -> None:
    _wait(True)


@callback(_NOTHING)
def _wait_after_unequal_work() -> None:
    _wait(False)


llvm.add_symbol("outrider_wait_for_team", _wait_for_team.address)
llvm.add_symbol("outrider_wait_after_unequal_work", _wait_after_unequal_work.address)
wait_for_team = types.ExternalFunction("outrider_wait_for_team", _NOTHING)
# Where threads had more and less to do, a thread that comes late says nothing about its core.
wait_after_unequal_work = types.ExternalFunction("outrider_wait_after_unequal_work", _NOTHING)


@intrinsic  # type: ignore[untyped-decorator]
def _call(context: Any, function: Any, address: Any) -> Any:
    """Call the compiled function at an address with another address."""
    del context, function, address

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        del context, signature
        function, given = arguments
        kind = ir.FunctionType(ir.VoidType(), [INT64])
        builder.call(builder.inttoptr(function, kind.as_pointer()), [given])
        return ir.Constant(INT64, 0)

    return types.int64(types.intp, types.intp), generate


@callback("void(voidptr)")
def call_and_wait(pointer: int) -> None:
    """Call a function, and let a team end together: its lag at the end counts, too.

    The array of integers has the function's address and that of its own array.
    """
    given = carray(pointer, (2,), np.int64)
    _call(given[0], given[1])
    wait_for_team()


@callback(types.int64())
def _read_ticks() -> int:
    return int(_ticks())


# The core's time stamp counter.
read_ticks = ctypes.CFUNCTYPE(ctypes.c_int64)(_read_ticks.address)


def total_lag() -> int:
    """Ticks from the first to the last thread, summed over barriers that a thread was late at."""
    return ctypes.c_int64.from_address(_address + _LAG).value
