"""`outrider bench accuracy`: right answers, with and without drafts, by the real engine."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.bench_flags import JsonFlag, check_json, open_model
from outrider.cli.flags import DraftFlags, expand_flags
from outrider.cli.model_flags import ModelFlags
from outrider.config.draft_config import AUTO, NO_DRAFT, NONE, DraftConfig
from outrider.frontend.interrupts import import_torch


@expand_flags
def accuracy(
    *,
    task: Annotated[
        Path | None, typer.Option(help="JSONL file of questions and answers; default: our own 24.")
    ] = None,
    examples: Annotated[
        Path | None, typer.Option(help="Such a file to take examples from; default: the task.")
    ] = None,
    shots: Annotated[int, typer.Option(help="Solved examples before each question.", min=0)] = 0,
    limit: Annotated[int, typer.Option(help="Ask this many questions; 0: all.", min=0)] = 0,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.", min=1)] = 256,
    temperature: Annotated[float, typer.Option(help="0: greedy.", min=0.0, max=2.0)] = 0.0,
    json_file: JsonFlag = None,
    model_flags: ModelFlags,
    draft_flags: DraftFlags,
) -> None:
    """Right answers to questions with a number; exit code 1 if drafts changed one, or none ran."""
    from outrider.bench.accuracy.accuracy_task import OWN_TASK, choose_task

    chosen = choose_task(task or OWN_TASK, examples=examples, shots=shots, limit=limit)
    draft = draft_flags.config()
    check_json(json_file)
    import_torch()
    from outrider.bench.accuracy.accuracy_report import describe_accuracy, print_accuracy
    from outrider.bench.accuracy.run_accuracy import AccuracyWork, measure_accuracy
    from outrider.bench.report import write_report

    work = AccuracyWork(
        model=model_flags.model, task=chosen, temperature=temperature, max_tokens=max_tokens
    )
    report = measure_accuracy(
        work,
        partial(model_flags.load, NO_DRAFT),
        {draft.drafter: partial(model_flags.load, draft)} if _drafts(draft, model_flags) else {},
    )
    print_accuracy(report)
    write_report(json_file, describe_accuracy(report))
    if not report.has_passed:
        raise typer.Exit(1)


def _drafts(draft: DraftConfig, flags: ModelFlags) -> bool:
    """Whether the engine will have a drafter."""
    from outrider.frontend.find_drafter import has_drafter

    if draft.drafter != AUTO:
        return draft.drafter != NONE
    return has_drafter(flags.model, open_model(flags.model))
