"""Choice of an executor by name."""

from collections.abc import Callable

from outrider.config.engine_config import Executor as Name
from outrider.step.executor import EagerExecutor, Executor
from outrider.step.graph_executor import GraphExecutor, up_to_long_chunks, without_breaks
from outrider.step.tape_executor import TapeExecutor


def make_executor(name: Name, agree: Callable[[bool], bool] = bool) -> Executor:
    """A new executor of this name, without captured graphs.

    `agree` tells whether something is true on all ranks.
    """
    match name:
        case "eager":
            return EagerExecutor()
        case "tape":
            return TapeExecutor()
        case "graph":
            return GraphExecutor(without_breaks, agree)
        case "breakable":
            return GraphExecutor(up_to_long_chunks, agree)
