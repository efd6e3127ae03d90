"""Graph semantics without a GPU: record a program's operations once per plan, then replay them.

A replay runs no Python of the program. What a program read from the host while recording stays
frozen, what it forgot to write stays stale, and reading a scalar is refused: the mistakes that a
CUDA graph would hide until production fail on a CPU, in a test.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from outrider.plan.plan import StepPlan

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Operation:
    """One recorded call. Its outputs are the fixed addresses that later operations read."""

    call: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]
    outputs: tuple[torch.Tensor, ...]  # fresh tensors to refresh on replay; empty if in place

    def replay(self) -> None:
        result = self.call(*self.args, **self.kwargs)
        if self.outputs:
            for fixed, fresh in zip(self.outputs, _tensors(result), strict=True):
                fixed.copy_(fresh)


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Sees every operation below autograd while a program runs for the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[_Operation] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        del types
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("a program read a device value on the host; keep it on the device")
        result = func(*args, **(kwargs or {}))
        if not _is_view(func):
            outputs = () if _writes_in_place(func) else _tensors(result)
            self.operations.append(_Operation(func, args, kwargs or {}, outputs))
        return result


class TapeExecutor:
    """Owns one tape per (program, plan). The plan's addresses are the tape's inputs."""

    def __init__(self) -> None:
        self._tapes: dict[tuple[Any, Any], tuple[list[_Operation], Any]] = {}

    def run(self, program: Callable[[StepPlan], T], plan: StepPlan) -> T:
        key = (program, plan.shape)
        if key not in self._tapes:
            with _Recorder() as recorder:
                output = program(plan)
            self._tapes[key] = (recorder.operations, output)
            return output
        operations, recorded = self._tapes[key]
        for operation in operations:
            operation.replay()
        return recorded  # type: ignore[no-any-return]


def _tensors(result: Any) -> tuple[torch.Tensor, ...]:
    return tuple(leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))


def _is_view(func: Any) -> bool:
    """Views alias their input: refreshing the input refreshes them."""
    returns = func._schema.returns
    return bool(returns) and all(
        ret.alias_info is not None and not ret.alias_info.is_write for ret in returns
    )


def _writes_in_place(func: Any) -> bool:
    return any(
        arg.alias_info is not None and arg.alias_info.is_write for arg in func._schema.arguments
    )
