"""The progress bar of a batch. It draws on stderr and only on a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]  # one more request is done; it gave this many tokens


@contextmanager
def batch_bar(total: int, *, done: int = 0) -> Iterator[Advance]:
    """A bar of requests with the speed of all of them together."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    speed = TextColumn("{task.fields[rate]:.1f} tokens/s")
    with Progress(*columns, speed, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total, completed=done, rate=0.0)
        num_tokens = 0

        def advance(tokens: int) -> None:
            nonlocal num_tokens
            num_tokens += tokens
            elapsed_s = progress.tasks[0].elapsed or 0.0
            rate = num_tokens / elapsed_s if elapsed_s else 0.0
            progress.update(task, advance=1, rate=rate)

        yield advance


@contextmanager
def no_bar() -> Iterator[Advance]:
    """Shows no bar."""
    yield lambda _tokens: None
