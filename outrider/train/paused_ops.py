"""Lets training wait inside a step: a function is called before every operation on tensors."""

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class BetweenOps(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Calls a function before each operation, forward and backward alike."""

    def __init__(self, pause: Callable[[], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._pause = pause

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        self._pause()
        return func(*args, **(kwargs or {}))
