"""A bar of runs with a line on what runs now, on stderr. Without a terminal: a line per run.

It redraws between runs only: a drawing thread would take time from the runs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn


@contextmanager
def run_bar(total: int) -> Iterator[Callable[[str], None]]:
    """Yields a function to call with the name of every run; the bar is removed at the end."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns,
        console=console,
        transient=True,
        auto_refresh=False,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("starting", total=total, completed=-1)  # the first run is not done

        def note(name: str) -> None:
            progress.update(task, description=name, advance=1, refresh=True)
            if not console.is_terminal:
                console.print(name)

        yield note
