"""`outrider train`: draft heads from prompts alone."""

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


@app.command("eagle3", cls=GroupedHelp)
@expand_flags
def eagle3(
    out: Out,
    *,
    flags: TrainFlags,
    layout: Annotated[
        Literal["eagle3", "eagle3.1"],
        head_flag("eagle3.1 normalises what is tapped and what is handed on."),
    ] = "eagle3",
    draft_vocab: Annotated[int, head_flag("Tokens that the head can propose.", min=2)] = 16000,
    format: Format = "eagle3",
    depth: Annotated[int, training_flag("How often a row is fed with itself.", min=1)] = 5,
    head_lr: Annotated[float, training_flag("Share of it for lm_head.", min=0.0)] = 0.1,
    head_frozen: Annotated[
        float, training_flag("Share of the steps before lm_head moves.", min=0.0)
    ] = 0.3,
) -> None:
    """Train an EAGLE-3 head: answer prompts, learn from the answers, export."""

    def design() -> "HeadDesign":
        from outrider.train.head_design import HeadDesign

        return HeadDesign(
            layout=layout,
            draft_vocab=draft_vocab,
            intermediate=flags.intermediate,
            heads=flags.heads,
            kv_heads=flags.kv_heads,
        )

    own = OwnTraining(depth=depth, head_lr=head_lr, head_frozen=head_frozen, format=format)
    flags.train(out, own, design)


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
