"""`outrider train dflash` and `dspark`: heads that draft a block in one pass."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from outrider.cli.train_command import (
    Answers,
    Attention,
    BatchSize,
    BudgetS,
    Compile,
    Device,
    Epochs,
    EvalEvery,
    HeadDtype,
    Heads,
    Intermediate,
    KvHeads,
    Length,
    LogEvery,
    Loss,
    Lr,
    Names,
    Optimizer,
    Out,
    Resume,
    SaveEvery,
    Seed,
    Steps,
    Warmup,
    start,
)
from outrider.cli.train_data import (
    AnswerTokens,
    GenerateS,
    MemoryShare,
    Model,
    Prompts,
    Rows,
    Temperatures,
)
from outrider.errors import ConfigError
from outrider.hub.aliases import DEFAULT_ALIAS

if TYPE_CHECKING:
    from outrider.train.head_design import BlockDesign

_H, _T = "Head", "Training"
Layers = Annotated[int, typer.Option(help="Decoder layers.", rich_help_panel=_H, min=1)]
Block = Annotated[
    int, typer.Option(help="Slots that it runs at once.", rich_help_panel=_H, min=2, max=64)
]
Causal = Annotated[bool, typer.Option(help="A slot reads no later ones.", rich_help_panel=_H)]
MarkovRank = Annotated[
    int,
    typer.Option(help="Rank of what the token before adds; 0: nothing.", rich_help_panel=_H, min=0),
]
Anchors = Annotated[
    int, typer.Option(help="Blocks trained in each sequence.", rich_help_panel=_T, min=1)
]
Algorithm = Literal["dflash", "dspark"]


def dflash(
    out: Out,
    prompts: Prompts = [],  # noqa: B006  # typer only reads it
    model: Model = DEFAULT_ALIAS,
    answers: Answers = [],  # noqa: B006
    temperatures: Temperatures = "0,0.8",
    answer_tokens: AnswerTokens = 512,
    generate_s: GenerateS = 0.0,
    rows: Rows = 64,
    gpu_memory_utilization: MemoryShare = 0.9,
    layers: Layers = 5,
    block: Block = 8,
    causal: Causal = False,
    intermediate: Intermediate = 0,
    heads: Heads = 0,
    kv_heads: KvHeads = 0,
    dtype: HeadDtype = "float16",
    anchors: Anchors = 256,
    loss: Loss = "ce",
    length: Length = 2048,
    batch: BatchSize = 8,
    epochs: Epochs = 3.0,
    steps: Steps = 0,
    budget_s: BudgetS = 0.0,
    optimizer: Optimizer = "adamw",
    lr: Lr = 6e-4,
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
    """Train a DFlash head: a block of slots that predict their own tokens."""
    _start("dflash", locals() | {"markov_rank": 0})


def dspark(
    out: Out,
    prompts: Prompts = [],  # noqa: B006
    model: Model = DEFAULT_ALIAS,
    answers: Answers = [],  # noqa: B006
    temperatures: Temperatures = "0,0.8",
    answer_tokens: AnswerTokens = 512,
    generate_s: GenerateS = 0.0,
    rows: Rows = 64,
    gpu_memory_utilization: MemoryShare = 0.9,
    layers: Layers = 2,
    block: Block = 7,
    causal: Causal = False,
    markov_rank: MarkovRank = 64,
    intermediate: Intermediate = 0,
    heads: Heads = 0,
    kv_heads: KvHeads = 0,
    dtype: HeadDtype = "float16",
    anchors: Anchors = 256,
    loss: Loss = "ce",
    length: Length = 2048,
    batch: BatchSize = 8,
    epochs: Epochs = 3.0,
    steps: Steps = 0,
    budget_s: BudgetS = 0.0,
    optimizer: Optimizer = "adamw",
    lr: Lr = 6e-4,
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
    """Train a DSpark head: slots predict the next token, and the token before helps."""
    _start("dspark", locals())


def _start(algorithm: Algorithm, flags: dict[str, Any]) -> None:
    is_next = algorithm == "dspark"
    num_drafts = flags["block"] if is_next else flags["block"] - 1
    if flags["length"] < num_drafts + 2:
        raise ConfigError(
            f"--length {flags['length']} leaves no room for {num_drafts} drafts; raise it"
        )
    # The target's lm_head is not trained, and there is one layout of the exported files.
    fixed = {"head_lr": 0.0, "head_frozen": 1.0, "format": "eagle3", "depth": num_drafts}

    def design_of(flags: dict[str, Any]) -> "BlockDesign":
        from outrider.train.head_design import BlockDesign

        sizes = Names(flags)("layers block markov_rank intermediate heads kv_heads")
        return BlockDesign(is_next=is_next, is_causal=flags["causal"], **sizes)

    start(flags | fixed, design_of)
