"""The line of a run under way. It draws on stderr and only on a terminal."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from outrider.bench.serve.http_client import Clock
from outrider.bench.serve.load_journal import LoadJournal

# Drawing takes milliseconds from the event loop that takes the times, so it is rare. A drawing
# thread would take them too, at moments that we cannot choose.
_INTERVAL_S = 0.5


class LiveDisplay:
    """Draws the journal regularly while its task runs."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=total, running=0, failed="", rate=0.0)

    async def run(self, journal: LoadJournal, clock: Clock) -> None:
        if self._progress.disable:
            return
        chunks, now_s = journal.num_chunks, clock()
        while True:
            await asyncio.sleep(_INTERVAL_S)
            elapsed_s, new_chunks = clock() - now_s, journal.num_chunks - chunks
            chunks, now_s = journal.num_chunks, clock()
            self._draw(journal, new_chunks * journal.tokens_per_chunk / elapsed_s)

    def _draw(self, journal: LoadJournal, rate: float) -> None:
        num_failed = len(journal.failures)
        self._progress.update(
            self._task,
            completed=journal.num_ended,
            running=journal.num_running,
            failed=f", {num_failed} failed" if num_failed else "",
            rate=rate,
            refresh=True,
        )


@contextmanager
def load_display(name: str, total: int) -> Iterator[LiveDisplay]:
    """A display that vanishes at the end."""
    console = Console(stderr=True)
    columns = (
        TextColumn(name),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[running]} running{task.fields[failed]}"),
        TextColumn("{task.fields[rate]:.0f} tok/s"),
    )
    with Progress(
        *columns,
        console=console,
        transient=True,
        auto_refresh=False,
        disable=not console.is_terminal,
    ) as progress:
        yield LiveDisplay(progress, total)
