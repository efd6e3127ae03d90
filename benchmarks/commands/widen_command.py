"""`python -m benchmarks widen`, and `iteration --widened`: a small model at a large one's cost."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from outrider.cli.bench_flags import ModelFlag, open_model
from outrider.frontend.interrupts import import_torch
from outrider.hub.aliases import DEFAULT_ALIAS

if TYPE_CHECKING:
    from benchmarks.steps.step_args import Place
    from benchmarks.widen.widen_args import SmallModel

_TREES = ("4", "4x4x16")
_MAX_TOKENS = 256


def widen(
    out: Annotated[Path, typer.Option(help="New folder; the head goes into one inside.")],
    model: ModelFlag = DEFAULT_ALIAS,
    body: Annotated[str, typer.Option(help="Whose shapes: llama-8b, smollm2-135m, tiny.")] = (
        "llama-8b"
    ),
    draft: Annotated[
        str, typer.Option(help="EAGLE-3 head to widen with it: auto, none or a folder.")
    ] = "none",
    dtype: Annotated[
        Literal["bfloat16", "float32"], typer.Option(help="Type of the weights.")
    ] = "bfloat16",
) -> None:
    """Write a checkpoint with the cost of a larger body that computes what the model computes."""
    from benchmarks.steps.body import find_body

    chosen, small = find_body(body), find_model(model, draft)
    import_torch()
    from benchmarks.widen.start_widened import (
        bench_widen,  # imports torch, so wrong flags fail first
    )

    bench_widen(small, chosen, out, dtype=dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class WidenedFlags:
    """The flags of `iteration` that go with --widened; None: not given."""

    widened: Annotated[
        str, typer.Option(help="Real model to run in the body's shapes: alias or folder.")
    ] = ""
    draft: Annotated[
        str | None, typer.Option(help="With --widened: its EAGLE-3 head; auto, none or a folder.")
    ] = None
    prompts: Annotated[
        Path | None, typer.Option(help="With --widened: JSONL file of questions.")
    ] = None
    tree: Annotated[
        list[str] | None,
        typer.Option(help="With --widened: STEPS or STEPSxTOPKxNODES; may be repeated."),
    ] = None
    max_tokens: Annotated[
        int | None, typer.Option(help="With --widened: longest answer, 256.", min=2)
    ] = None

    def check_absent(self) -> None:
        """Refuse them where nothing is widened."""
        from outrider.errors import ConfigError

        given = (self.draft, self.prompts, self.tree or None, self.max_tokens)
        if any(each is not None for each in given):
            raise ConfigError("--draft, --prompts, --tree and --max-tokens go with --widened MODEL")


def widened_iteration(
    flags: WidenedFlags, body: str, place: "Place", rows: str, json_path: Path | None
) -> None:
    """Real answers of a widened model: by plain decoding, and with every tree."""
    from benchmarks.steps.body import find_body
    from benchmarks.widen.widen_args import AnswerWork, parse_trees
    from outrider.bench.offline.offline_args import parse_rows
    from outrider.bench.texts import read_texts
    from outrider.errors import ConfigError

    if flags.prompts is None:
        raise ConfigError("--widened answers real questions; name a JSONL file with --prompts")
    chosen = find_body(body)
    work = AnswerWork(
        rows=parse_rows(rows),
        trees=parse_trees(flags.tree or _TREES),
        texts=tuple(read_texts(flags.prompts)),
        origin=flags.prompts.name,
        max_tokens=_MAX_TOKENS if flags.max_tokens is None else flags.max_tokens,
    )
    small = find_model(flags.widened, "auto" if flags.draft is None else flags.draft)
    import_torch()
    from benchmarks.widen.start_widened import bench_widened  # imports torch

    bench_widened(small, chosen, place, work, json_path)


def find_model(model: str, draft: str) -> "SmallModel":
    """The folders of a model and of its head, downloaded if necessary."""
    from benchmarks.widen.widen_args import SmallModel
    from outrider.config.draft_config import NGRAM, NONE, DraftConfig
    from outrider.errors import ConfigError
    from outrider.frontend.find_drafter import find_drafter
    from outrider.hub.download_bars import BarReporter

    if draft == NGRAM:
        raise ConfigError("--draft ngram has no weights to widen; use auto, none or a head")
    folder = open_model(model)
    config = DraftConfig(drafter=draft)
    found = find_drafter(config, model=model, folder=folder, reporter=BarReporter())
    heads = () if found.drafter == NONE else (Path(found.drafter),)
    return SmallModel(name=Path(model).name, folder=folder, heads=heads)
