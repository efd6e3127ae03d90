"""Graph semantics without a GPU: capture a program's operations once per plan, then replay them.

A replay runs no Python of the program. A value that the program read from the host stays as it was
at the first run, a tensor that it forgot to write keeps its old value, and reading a scalar is an
error. So the mistakes that a CUDA graph hides until production fail in a test on a CPU.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from outrider.ops.graph_break import Call, call_now, handle_breaks
from outrider.step.plan import StepPlan
from outrider.step.shape import StepShape

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Operation:
    """One captured call. Its outputs are the fixed addresses that later operations read."""

    call: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]
    outputs: tuple[torch.Tensor, ...]  # rewritten on replay; none for an operation in place

    def replay(self) -> None:
        result = self.call(*self.args, **self.kwargs)
        if self.outputs:
            outputs = (tensor for tensor in _tensors(result) if tensor.numel())
            for fixed, fresh in zip(self.outputs, outputs, strict=True):
                fixed.copy_(fresh)


class _TapeCapture(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Captures every operation below autograd while a program runs for the first time."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[_Operation] = []

    def on_break(self, call: Call, *args: Any) -> None:
        """Make the call of a graph break and capture it as one call, without its operations."""
        with _disable_current_modes(), handle_breaks(call_now):  # a break inside is part of it
            call(*args)
        self.operations.append(_Operation(call, args, {}, ()))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        del types
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("a program read a device value on the host; keep it on the device")
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if _writes_in_place(func):
            self.operations.append(_Operation(func, args, kwargs, ()))
        elif fresh := _fresh(result, inputs=_tensors((args, kwargs))):
            self.operations.append(_Operation(func, args, kwargs, fresh))
        return result


class TapeExecutor:
    """Owns one tape per (program, plan). The plan's addresses are the tape's inputs."""

    num_uncapturable = 0

    def __init__(self) -> None:
        self.num_eager = 0
        self._tapes: dict[tuple[Any, Any], tuple[list[_Operation], Any]] = {}

    def cover(self, shape: StepShape) -> StepShape:
        return shape

    def prepare(self, program: Callable[[StepPlan], T], plan: StepPlan) -> None:
        pass  # a tape is captured by running it

    def run(self, program: Callable[[StepPlan], T], plan: StepPlan) -> T:
        key = (program, plan.shape)
        if key not in self._tapes:
            self.num_eager += 1
            capture = _TapeCapture()
            with handle_breaks(capture.on_break), capture:
                output = program(plan)
            self._tapes[key] = (capture.operations, output)
            return output
        operations, output = self._tapes[key]
        for operation in operations:
            operation.replay()
        return output


def _tensors(result: Any) -> tuple[torch.Tensor, ...]:
    return tuple(leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))


def _fresh(result: Any, *, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Outputs with memory of their own. A view needs no rewriting: its base tensor is rewritten.

    The schema does not tell which is which: `reshape` is declared a view but may copy.
    """
    outputs = tuple(tensor for tensor in _tensors(result) if tensor.numel())
    known = {_storage(tensor) for tensor in inputs}
    fresh = tuple(tensor for tensor in outputs if _storage(tensor) not in known)
    assert len(fresh) in (0, len(outputs)), "an operation returns views or new tensors, not both"
    return fresh


def _storage(tensor: torch.Tensor) -> int:
    # Packed weights (oneDNN) have no storage pointer, and no tensor is a view of them.
    is_opaque = tensor.layout is not torch.strided
    return id(tensor) if is_opaque else tensor.untyped_storage().data_ptr()


def _writes_in_place(func: Any) -> bool:
    return any(
        arg.alias_info is not None and arg.alias_info.is_write for arg in func._schema.arguments
    )
