"""Flags that several benchmarks share, and what is checked before any of them loads torch."""

from pathlib import Path
from typing import Annotated

import typer

ModelFlag = Annotated[str, typer.Option(help="Alias, hub id, GGUF file or folder.")]
DtypeFlag = Annotated[
    list[str], typer.Option(help="Types of the weights: a comma list, or repeat the flag.")
]
ThreadsFlag = Annotated[int, typer.Option(help="Threads of torch; 0: its own choice.", min=0)]
JsonFlag = Annotated[
    Path | None, typer.Option("--json", help="Also write every number to this file.")
]


def checked_targets(path: Path | None) -> tuple[Path, ...]:
    """The file to write, once it is known that it can be written."""
    if path is None:
        return ()
    from outrider.bench.json_file import check_target

    check_target(path)
    return (path,)


def open_model(model: str) -> Path:
    """The folder of a model, pulled if need be."""
    from outrider.store.bars import BarReporter
    from outrider.store.resolve import resolve

    return resolve(model, BarReporter())
