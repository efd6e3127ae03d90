"""`outrider bench acceptance`: how many drafts are accepted, with the real engine."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from outrider.cli.bench_flags import (
    DraftsFlag,
    JsonFlag,
    ModelFlag,
    check_json,
    find_drafts,
)
from outrider.frontend.interrupts import import_torch
from outrider.hub.aliases import DEFAULT_ALIAS

_TREES = ["4", "4x4x16"]
_TEMPERATURES = [0.0, 1.0]

TreeFlag = Annotated[list[str], typer.Option(help="STEPS or STEPSxTOPKxNODES; may be repeated.")]
TemperatureFlag = Annotated[list[float], typer.Option(help="0: greedy; may be repeated.")]


def acceptance(
    prompts: Annotated[Path, typer.Option(help="JSONL file of prompts, with their sources.")],
    model: ModelFlag = DEFAULT_ALIAS,
    draft: DraftsFlag = ["auto"],  # noqa: B006  # typer only reads it
    tree: TreeFlag = _TREES,
    temperature: TemperatureFlag = _TEMPERATURES,
    limit: Annotated[int, typer.Option(help="Prompts of each source; 0: all.", min=0)] = 0,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.", min=2)] = 128,
    rows: Annotated[int, typer.Option(help="Answers at a time.", min=1)] = 16,
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16", "int8", "packed"],
        typer.Option(help="Type of the weights."),
    ] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    json_file: JsonFlag = None,
) -> None:
    """Tokens per round by drafter, tree, temperature and source of the prompts."""
    from outrider.bench.acceptance.acceptance_args import (
        AcceptanceArgs,
        choose_questions,
        parse_temperatures,
        parse_tree,
    )

    check_json(json_file)
    args = AcceptanceArgs(
        drafts=find_drafts(draft, model),
        trees=tuple(parse_tree(each) for each in tree),
        temperatures=parse_temperatures(temperature),
        questions=choose_questions(prompts, limit=limit),
        max_tokens=max_tokens,
        rows=rows,
    )
    import_torch()
    from outrider.bench.acceptance.start_acceptance import (
        bench_acceptance,  # imports torch, so wrong flags fail first
    )

    bench_acceptance(model, args, dtype=dtype, device=device, json_path=json_file)
