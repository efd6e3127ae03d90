"""`python -m benchmarks ranks`: what several ranks add to a step on the host."""

from typing import Annotated

import typer

from outrider.frontend.interrupts import import_torch


def ranks(
    size: Annotated[int, typer.Option(help="Ranks.", min=2)] = 2,
) -> None:
    """What several ranks add to a step on a CPU: commands, exchanges, whole steps."""
    import_torch()
    from benchmarks.ranks.time_ranks import bench_ranks  # imports torch

    bench_ranks(size)
