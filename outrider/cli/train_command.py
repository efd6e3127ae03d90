"""`outrider train`: draft heads from prompts alone."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from outrider.cli import train_data
from outrider.cli.train_data import (
    AnswerTokens,
    GenerateS,
    MemoryShare,
    Model,
    Prompts,
    Rows,
    Temperatures,
    answer_flag,
    generator_of,
    sampling_of,
)
from outrider.errors import ConfigError
from outrider.frontend.interrupts import import_torch
from outrider.hub.aliases import DEFAULT_ALIAS

if TYPE_CHECKING:
    from outrider.train.head_design import BlockDesign, HeadDesign
    from outrider.train.start_training import TrainingPlan

app = typer.Typer(
    help="Train draft heads and export them.", no_args_is_help=True, rich_markup_mode=None
)
app.command("prompts")(train_data.prompts)
app.command("answers")(train_data.answers)


def _flag(panel: str, text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel=panel, **more)


_H, _T, _R = "Head", "Training", "Run"
Out = Annotated[Path, typer.Option(help="Folder of the run: answers, checkpoints, head, picture.")]
Resume = Annotated[bool, _flag(_R, "Go on from the last checkpoint, if there is one.")]
Device = Annotated[str, _flag(_R, "auto, cpu, cuda, cuda:1, ...")]
Attention = Annotated[
    Literal["auto", "dense", "flex"], _flag(_R, "auto: flex on a GPU, else dense.")
]
Compile = Annotated[bool, _flag(_R, "Compile the loss.")]
LogEvery = Annotated[int, _flag(_R, "Steps between lines of metrics.jsonl.", min=1)]
EvalEvery = Annotated[int, _flag(_R, "Steps between examinations on held-out answers.", min=1)]
SaveEvery = Annotated[int, _flag(_R, "Steps between checkpoints.", min=1)]
Answers = Annotated[
    list[Path],
    answer_flag("Answers of an earlier run (.jsonl or .jsonl.gz), may be repeated; none are made."),
]
Layout = Annotated[
    Literal["eagle3", "eagle3.1"],
    _flag(_H, "eagle3.1 normalises what is tapped and what is handed on."),
]
DraftVocab = Annotated[int, _flag(_H, "Tokens that the head can propose.", min=2)]
Intermediate = Annotated[int, _flag(_H, "Width of its feed-forward part; 0: the target's.", min=0)]
Heads = Annotated[int, _flag(_H, "Attention heads; 0: the target's.", min=0)]
KvHeads = Annotated[int, _flag(_H, "Key-value heads; 0: the target's.", min=0)]
Format = Annotated[Literal["eagle3", "speculators"], _flag(_H, "Layout of the exported files.")]
HeadDtype = Annotated[
    Literal["float16", "bfloat16", "float32"], _flag(_H, "Type of the exported weights.")
]
Depth = Annotated[int, _flag(_T, "How often a row is fed with itself.", min=1)]
Loss = Annotated[Literal["ce", "lk"], _flag(_T, "Cross-entropy, or the LK loss.")]
Length = Annotated[int, _flag(_T, "Tokens of a sequence.", min=8)]
BatchSize = Annotated[int, _flag(_T, "Sequences of a step.", min=1)]
Epochs = Annotated[float, _flag(_T, "Passes over the answers.")]
Steps = Annotated[int, _flag(_T, "Steps; 0: as many as the epochs take.", min=0)]
BudgetS = Annotated[float, _flag(_T, "Take fewer steps if they exceed this time; 0: no limit.")]
Optimizer = Annotated[
    Literal["adamw", "muon"], _flag(_T, "muon moves the matrices of the body by Muon.")
]
Lr = Annotated[float, _flag(_T, "Highest learning rate.")]
HeadLr = Annotated[float, _flag(_T, "Share of it for lm_head.", min=0.0)]
HeadFrozen = Annotated[float, _flag(_T, "Share of the steps before lm_head moves.", min=0.0)]
Warmup = Annotated[float, _flag(_T, "Share of the steps in which the rate rises.", min=0.0)]
Seed = Annotated[int, _flag(_T, "Of answers, order and initial weights.")]


@app.command("eagle3")
def eagle3(
    out: Out,
    prompts: Prompts = [],  # noqa: B006  # typer only reads it
    model: Model = DEFAULT_ALIAS,
    answers: Answers = [],  # noqa: B006
    temperatures: Temperatures = "0,0.8",
    answer_tokens: AnswerTokens = 512,
    generate_s: GenerateS = 0.0,
    rows: Rows = 64,
    gpu_memory_utilization: MemoryShare = 0.9,
    layout: Layout = "eagle3",
    draft_vocab: DraftVocab = 16000,
    intermediate: Intermediate = 0,
    heads: Heads = 0,
    kv_heads: KvHeads = 0,
    format: Format = "eagle3",
    dtype: HeadDtype = "float16",
    depth: Depth = 5,
    loss: Loss = "ce",
    length: Length = 2048,
    batch: BatchSize = 8,
    epochs: Epochs = 3.0,
    steps: Steps = 0,
    budget_s: BudgetS = 0.0,
    optimizer: Optimizer = "adamw",
    lr: Lr = 6e-4,
    head_lr: HeadLr = 0.1,
    head_frozen: HeadFrozen = 0.3,
    warmup: Warmup = 0.04,
    seed: Seed = 0,
    device: Device = "auto",
    attention: Attention = "auto",
    compile: Compile = False,
    log_every: LogEvery = 20,
    eval_every: EvalEvery = 250,
    save_every: SaveEvery = 500,
    resume: Resume = False,
) -> None:
    """Train an EAGLE-3 head: answer prompts, learn from the answers, export."""
    start(locals(), _eagle3_design)


def _eagle3_design(flags: dict[str, Any]) -> "HeadDesign":
    from outrider.train.head_design import HeadDesign

    return HeadDesign(**Names(flags)("layout draft_vocab intermediate heads kv_heads"))


def start(
    flags: dict[str, Any],
    design_of: Callable[[dict[str, Any]], "HeadDesign | BlockDesign"],
) -> None:
    """Train as the flags say. Wrong flags fail before torch is imported."""
    if not flags["prompts"] and not flags["answers"]:
        raise ConfigError("there is nothing to learn from; give --prompts, or --answers of a run")
    for name in ("epochs", "lr"):
        if not 0 < flags[name] < math.inf:
            raise ConfigError(f"--{name} must be a number above 0, got {flags[name]}")
    import_torch()
    from outrider.train.gather_answers import AnswerSource
    from outrider.train.start_training import TrainingOutput, train_head
    from outrider.train.training_device import RequestedDevice

    names, attention = Names(flags), flags["attention"]
    train_head(
        generator_of(flags),
        design_of(flags),
        AnswerSource(
            prompts=tuple(flags["prompts"]),
            answers=tuple(flags["answers"]),
            sampling=sampling_of(flags),
        ),
        _plan(flags),
        RequestedDevice(
            device=flags["device"],
            attention=None if attention == "auto" else attention,
            is_compiled=flags["compile"],
        ),
        TrainingOutput(folder=flags["out"], **names("format dtype resume")),
    )


def _plan(flags: dict[str, Any]) -> "TrainingPlan":
    """How long is trained, at which rates, and how often the run is evaluated and saved."""
    from outrider.train.recipe import LearningRates, Recipe
    from outrider.train.start_training import TrainingPlan
    from outrider.train.training_loop import Cadence

    names = Names(flags)
    return TrainingPlan(
        recipe=Recipe(
            decay=0.8, anchors=flags.get("anchors", 0), **names("steps batch depth loss seed")
        ),
        rates=LearningRates(
            peak=flags["lr"],
            floor=0.05,
            clip=1.0,
            warmup=flags["warmup"],
            scores=flags["head_lr"],
            scores_frozen=flags["head_frozen"],
            optimizer=flags["optimizer"],
        ),
        cadence=Cadence(
            log=flags["log_every"], evaluate=flags["eval_every"], save=flags["save_every"]
        ),
        **names("length epochs budget_s"),
    )


@dataclass(frozen=True)
class Names:
    """Some of the flags, by name."""

    flags: dict[str, Any]

    def __call__(self, names: str) -> dict[str, Any]:
        return {name: self.flags[name] for name in names.split()}


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
