"""`outrider train`: draft heads from prompts alone."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from outrider.cli import train_data
from outrider.cli.flags import expand_flags
from outrider.cli.grouped_help import GroupedHelp
from outrider.cli.train_flags import (
    Format,
    HeadDtype,
    Out,
    OwnTraining,
    TrainFlags,
    head_flag,
    training_flag,
)

if TYPE_CHECKING:
    from outrider.train.head_design import HeadDesign

app = typer.Typer(
    help="Train draft heads and export them.", no_args_is_help=True, rich_markup_mode=None
)
app.command("prompts", cls=GroupedHelp)(train_data.prompts)
app.command("answers", cls=GroupedHelp)(train_data.answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleFlags:
    """Flags of heads that read the target's states and tokens in their first layer."""

    layout: Annotated[
        Literal["eagle3", "eagle3.1"],
        head_flag("eagle3.1 normalises what is tapped and what is handed on."),
    ] = "eagle3"
    draft_vocab: Annotated[int, head_flag("Tokens that the head can propose.", min=2)] = 16000
    head_lr: Annotated[float, training_flag("Share of it for lm_head.", min=0.0)] = 0.1
    head_frozen: Annotated[
        float, training_flag("Share of the steps before lm_head moves.", min=0.0)
    ] = 0.3

    def design(self, flags: TrainFlags, *, layers: int, masked_drafts: int) -> "HeadDesign":
        from outrider.train.head_design import HeadDesign

        return HeadDesign(
            layout=self.layout,
            draft_vocab=self.draft_vocab,
            layers=layers,
            masked_drafts=masked_drafts,
            intermediate=flags.intermediate,
            heads=flags.heads,
            kv_heads=flags.kv_heads,
        )

    def own_training(self, depth: int) -> OwnTraining:
        return OwnTraining(depth=depth, head_lr=self.head_lr, head_frozen=self.head_frozen)


@app.command("eagle3", cls=GroupedHelp)
@expand_flags
def eagle3(
    out: Out,
    *,
    flags: TrainFlags,
    eagle_flags: EagleFlags,
    format: Format = "eagle3",
    depth: Annotated[int, training_flag("How often a row is fed with itself.", min=1)] = 5,
) -> None:
    """Train an EAGLE-3 head: answer prompts, learn from the answers, export."""
    own = replace(eagle_flags.own_training(depth), format=format)
    flags.train(out, own, lambda: eagle_flags.design(flags, layers=1, masked_drafts=0))


@app.command("peagle", cls=GroupedHelp)
@expand_flags
def peagle(
    out: Out,
    *,
    flags: TrainFlags,
    eagle_flags: EagleFlags,
    layers: Annotated[int, head_flag("Decoder layers.", min=1)] = 4,
    depth: Annotated[int, training_flag("Drafts of a pass that are trained.", min=1)] = 7,
) -> None:
    """Train a P-EAGLE head: an EAGLE-3 head that drafts a block in one pass."""
    own = eagle_flags.own_training(depth)
    flags.train(out, own, lambda: eagle_flags.design(flags, layers=layers, masked_drafts=depth))


@app.command("export")
def export(
    checkpoint: Annotated[Path, typer.Argument(help="A folder step-N of a run.")],
    out: Annotated[Path, typer.Option(help="Folder to write; it must not exist.")],
    model: Annotated[str, typer.Option(help="The target; default: as it was trained.")] = "",
    format: Format = "eagle3",
    dtype: HeadDtype = "float16",
) -> None:
    """Write the head of a checkpoint in the form that engines load."""
    from outrider.hub.download_bars import BarReporter
    from outrider.hub.resolve_model import resolve_model
    from outrider.train.checkpoints import load_checkpoint
    from outrider.train.export_head import export_head

    loaded = load_checkpoint(checkpoint)
    folder = resolve_model(model or loaded.facts["target"], BarReporter())
    num_bytes = export_head(loaded, out, target_folder=folder, format=format, dtype=dtype)
    print(f"{out}: {num_bytes / 1e6:.1f} MB")


@app.command("plot")
def plot(
    run: Annotated[Path, typer.Argument(help="The --out of a run, finished or not.")],
) -> None:
    """Draw the run as run.png."""
    from outrider.train.plot_training import plot_run

    print(plot_run(run))
