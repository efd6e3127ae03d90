"""Progress of a run: lines of metrics.jsonl, and a bar or plain lines on stderr."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from outrider.hub.jsonl import numbered_lines
from outrider.train.acceptance_meter import TrainingMetrics

MetricsKind = Literal["train", "held out"]
ShowProgress = Callable[[int, str], None]  # steps taken so far, and a text about them


class TrainingLog:
    """Owns metrics.jsonl. A resumed run drops the lines after the step that it resumes from."""

    def __init__(self, path: Path, *, step: int) -> None:
        self._path = path
        self._begin_s = time.monotonic()
        lines = [line for line in read_metrics(path) if line["step"] <= step] if step else []
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

    def write(self, kind: MetricsKind, step: int, metrics: TrainingMetrics, **more: float) -> None:
        line = {"step": step, "kind": kind, **asdict(metrics), **more}
        line["elapsed_s"] = round(time.monotonic() - self._begin_s, 3)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    return [json.loads(line) for _, line in numbered_lines(path) if line.endswith("}")]


def metrics_line(metrics: TrainingMetrics) -> str:
    """The metrics as one readable line."""
    confidence = f", confidence {_shares(metrics.confidence)}" if metrics.confidence else ""
    return (
        f"loss {metrics.loss:.3f}, agrees {_shares(metrics.agreement)}{confidence}, accept length "
        f"{metrics.accept_length:.2f} greedy, {metrics.accept_length_sampled:.2f} sampled"
    )


def _shares(values: Sequence[float]) -> str:
    return " ".join(f"{share:.2f}".lstrip("0") for share in values)


def log_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def training_bar(total: int, *, done: int) -> Iterator[ShowProgress]:
    """A function that shows progress: a bar on a terminal, else plain lines."""
    console = Console(stderr=True)
    columns: Sequence[Any] = (
        TextColumn("step"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[facts]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total, completed=done, facts="")

        def show(step: int, facts: str) -> None:
            if console.is_terminal:
                progress.update(task, completed=step, facts=facts)
            else:
                log_line(f"step {step}/{total}: {facts}")

        yield show
