"""The flags that all kinds of heads share in `outrider train`, and the records they become."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from outrider.cli.train_data import PROMPTS_HELP, AnswerFlags, answer_flag
from outrider.errors import ConfigError
from outrider.frontend.interrupts import import_torch

if TYPE_CHECKING:
    from outrider.train.gather_answers import AnswerSource
    from outrider.train.head_design import BlockDesign, HeadDesign
    from outrider.train.start_training import TrainingPlan
    from outrider.train.training_device import RequestedDevice


def head_flag(text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Head", **more)


def training_flag(text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Training", **more)


def _run_flag(text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Run", **more)


Out = Annotated[Path, typer.Option(help="Folder of the run: answers, checkpoints, head, picture.")]
Format = Annotated[Literal["eagle3", "speculators"], head_flag("Layout of the exported files.")]
HeadDtype = Annotated[
    Literal["float16", "bfloat16", "float32"], head_flag("Type of the exported weights.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTraining:
    """What the kinds of heads train differently, beside their design."""

    depth: int  # draft steps that are trained
    anchors: int = 0  # blocks that are trained in each sequence
    # A head with blocks scores with the target's lm_head, which is not trained.
    head_lr: float = 0.0
    head_frozen: float = 1.0
    format: Literal["eagle3", "speculators"] = "eagle3"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainFlags(AnswerFlags):
    """How a head is trained, whatever its kind."""

    prompts: Annotated[list[Path] | None, typer.Option(help=PROMPTS_HELP)] = None
    answers: Annotated[
        list[Path] | None,
        answer_flag(
            "Answers of an earlier run (.jsonl or .jsonl.gz), may be repeated; none are made."
        ),
    ] = None
    intermediate: Annotated[
        int, head_flag("Width of its feed-forward part; 0: the target's.", min=0)
    ] = 0
    heads: Annotated[int, head_flag("Attention heads; 0: the target's.", min=0)] = 0
    kv_heads: Annotated[int, head_flag("Key-value heads; 0: the target's.", min=0)] = 0
    dtype: HeadDtype = "float16"
    init_from: Annotated[
        Path | None, head_flag("A head of the same sizes whose weights and tokens it begins with.")
    ] = None
    loss: Annotated[Literal["ce", "lk"], training_flag("Cross-entropy, or the LK loss.")] = "ce"
    length: Annotated[int, training_flag("Tokens of a sequence.", min=8)] = 2048
    batch: Annotated[int, training_flag("Sequences of a step.", min=1)] = 8
    epochs: Annotated[float, training_flag("Passes over the answers.")] = 3.0
    steps: Annotated[int, training_flag("Steps; 0: as many as the epochs take.", min=0)] = 0
    budget_s: Annotated[
        float, training_flag("Take fewer steps if they exceed this time; 0: no limit.")
    ] = 0.0
    optimizer: Annotated[
        Literal["adamw", "muon"], training_flag("muon moves the matrices of the body by Muon.")
    ] = "adamw"
    lr: Annotated[float, training_flag("Highest learning rate.")] = 6e-4
    warmup: Annotated[
        float, training_flag("Share of the steps in which the rate rises.", min=0.0)
    ] = 0.04
    attention: Annotated[
        Literal["auto", "dense", "flex"], _run_flag("auto: flex on a GPU, else dense.")
    ] = "auto"
    compile: Annotated[bool, _run_flag("Compile layers and loss: faster after a minute.")] = False
    cache_gb: Annotated[
        float, _run_flag("Memory for the target's states, which later epochs read.", min=0.0)
    ] = 0.0
    log_every: Annotated[int, _run_flag("Steps between lines of metrics.jsonl.", min=1)] = 20
    eval_every: Annotated[
        int, _run_flag("Steps between examinations on held-out answers.", min=1)
    ] = 250
    save_every: Annotated[int, _run_flag("Steps between checkpoints.", min=1)] = 500
    resume: Annotated[bool, _run_flag("Go on from the last checkpoint, if there is one.")] = False

    def train(
        self, out: Path, own: OwnTraining, design: "Callable[[], HeadDesign | BlockDesign]"
    ) -> None:
        """Train as the flags say. Wrong flags fail before torch is imported."""
        self._check()
        import_torch()
        from outrider.train.start_training import TrainingOutput, train_head

        train_head(
            self.generator(),
            design(),
            self._source(),
            self._plan(own),
            self._requested(),
            TrainingOutput(folder=out, format=own.format, dtype=self.dtype, resume=self.resume),
        )

    def _check(self) -> None:
        if not self.prompts and not self.answers:
            raise ConfigError(
                "there is nothing to learn from; give --prompts, or --answers of a run"
            )
        for name, value in (("epochs", self.epochs), ("lr", self.lr)):
            if not 0 < value < math.inf:
                raise ConfigError(f"--{name} must be a number above 0, got {value}")

    def _source(self) -> "AnswerSource":
        from outrider.train.gather_answers import AnswerSource

        return AnswerSource(
            prompts=tuple(self.prompts or ()),
            answers=tuple(self.answers or ()),
            sampling=self.sampling(max_context=self.length),
        )

    def _plan(self, own: OwnTraining) -> "TrainingPlan":
        """How long is trained, at which rates, and how often the run is evaluated and saved."""
        from outrider.train.recipe import LearningRates, Recipe
        from outrider.train.start_training import TrainingPlan
        from outrider.train.training_loop import Cadence

        return TrainingPlan(
            recipe=Recipe(
                steps=self.steps,
                batch=self.batch,
                depth=own.depth,
                decay=0.8,
                loss=self.loss,
                seed=self.seed,
                anchors=own.anchors,
            ),
            rates=LearningRates(
                peak=self.lr,
                warmup=self.warmup,
                floor=0.05,
                clip=1.0,
                scores=own.head_lr,
                scores_frozen=own.head_frozen,
                optimizer=self.optimizer,
            ),
            cadence=Cadence(log=self.log_every, evaluate=self.eval_every, save=self.save_every),
            length=self.length,
            epochs=self.epochs,
            budget_s=self.budget_s,
            init_from=self.init_from,
            cache_gb=self.cache_gb,
        )

    def _requested(self) -> "RequestedDevice":
        from outrider.train.training_device import RequestedDevice

        return RequestedDevice(
            device=self.device,
            attention=None if self.attention == "auto" else self.attention,
            is_compiled=self.compile,
        )
