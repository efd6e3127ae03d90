"""Flags that several benchmarks share, and checks that come before torch is imported."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from outrider.config.draft_config import DraftConfig

ModelFlag = Annotated[str, typer.Option(help="Alias, hub id, GGUF file or folder.")]
DtypeFlag = Annotated[
    list[str], typer.Option(help="Types of the weights: a comma list, or repeat the flag.")
]
DraftsFlag = Annotated[
    list[str], typer.Option(help="ngram, suffix, or a smaller model or head; may be repeated.")
]
ThreadsFlag = Annotated[int, typer.Option(help="Threads of torch; 0: its own choice.", min=0)]
JsonFlag = Annotated[
    Path | None, typer.Option("--json", help="Also write every number to this file.")
]


def check_json(path: Path | None) -> None:
    """Refuse a JSON file that cannot be written, before anything is measured."""
    from outrider.bench.json_file import check_target

    if path is not None:
        check_target(path)


def open_model(model: str) -> Path:
    """The folder of a model, downloaded if necessary."""
    from outrider.hub.download_bars import BarReporter
    from outrider.hub.resolve_model import resolve_model

    return resolve_model(model, BarReporter())


def find_drafts(names: Sequence[str], model: str, **sizes: Any) -> "dict[str, DraftConfig]":
    """The drafters to compare, by the name to show, with checked sizes."""
    from outrider.config.draft_config import NONE, DraftConfig, resolve_budget
    from outrider.errors import ConfigError
    from outrider.frontend.find_drafter import find_drafter
    from outrider.hub.download_bars import BarReporter
    from outrider.runtime.load_draft import fit_draft

    drafts, folder = {}, open_model(model)
    for name, shown in short_names(names).items():
        wanted = DraftConfig(drafter=name, adaptive=False, **sizes)
        draft = find_drafter(wanted, model=model, folder=folder, reporter=BarReporter())
        resolve_budget(fit_draft(draft, folder))
        if draft.drafter != NONE:
            drafts[shown] = draft
    if not drafts:
        raise ConfigError("nothing drafts for this model; name a drafter with --draft")
    return drafts


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """The last part of each path; the whole path where two have the same last part."""
    last = {path: Path(path).name for path in paths}
    parts = list(last.values())
    return {path: part if parts.count(part) == 1 else path for path, part in last.items()}
