"""Progress bars for a terminal, and a line per task where there is none.

Imports rich, so import this only where bars are drawn.
"""

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from outrider.hub.download_progress import UNKNOWN_TOTAL


class BarReporter:
    """Owns the bar of the current task. Draws on stderr; stdout is for answers."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )

    def start(self, task: str, total: int) -> None:
        self._progress.add_task(task, total=None if total == UNKNOWN_TOTAL else total)
        if not self._console.is_terminal:
            self._console.print(task, soft_wrap=True, markup=False, highlight=False)
        self._progress.start()

    def advance(self, amount: int) -> None:
        self._progress.advance(self._progress.task_ids[-1], amount)

    def finish(self) -> None:
        self._progress.stop()
        self._progress.remove_task(self._progress.task_ids[-1])
