"""`outrider bench adaptive`: whether adaptive drafting is ever slower than plain decoding."""

from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.bench_flags import (
    JsonFlag,
    ModelFlag,
    ThreadsFlag,
    check_json,
    find_drafts,
    open_model,
)
from outrider.frontend.interrupts import import_torch
from outrider.hub.aliases import DEFAULT_ALIAS


def adaptive(
    model: ModelFlag = DEFAULT_ALIAS,
    draft: Annotated[str, typer.Option(help="The drafter, as for generate.")] = "auto",
    rows: Annotated[str, typer.Option(help="Requests at a time, a comma list.")] = "1,4,16",
    texts: Annotated[str, typer.Option(help="Kinds of text, a comma list.")] = "easy,mixed,hard",
    temperature: Annotated[
        float | None,
        typer.Option(help="Of all answers; default: 0, and 1.6 for hard texts.", min=0.0, max=2.0),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help="JSONL file of prompts with sources; else, and for edits, our own."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Length of every answer.", min=2)] = 64,
    rounds: Annotated[int, typer.Option(help="Rounds of every engine.", min=1)] = 2,
    starts: Annotated[int, typer.Option(help="Fresh engines of each way.", min=1)] = 2,
    fixed: Annotated[bool, typer.Option(help="Also measure every fixed budget.")] = True,
    dtype: Annotated[str, typer.Option(help="Type of the weights.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    threads: ThreadsFlag = 0,
    json_file: JsonFlag = None,
) -> None:
    """Adaptive drafting against plain decoding and fixed budgets, from the first round on."""
    from outrider.bench.adaptive.adaptive_args import AdaptiveArgs, AdaptiveWork, choose_texts
    from outrider.bench.churn.churn_args import ChurnPlace
    from outrider.bench.offline.offline_args import parse_dtypes, parse_rows

    work = AdaptiveWork(
        rows=parse_rows(rows), answer=max_tokens, rounds=rounds, starts=starts, has_fixed=fixed
    )
    files = () if prompts is None else (prompts,)
    chosen = choose_texts(texts, files, temperature=temperature)
    weights = "auto" if dtype == "auto" else parse_dtypes([dtype])[0]
    check_json(json_file)
    (only,) = find_drafts([draft], model).values()
    args = AdaptiveArgs(
        work=work, texts=chosen, draft=only, place=ChurnPlace(dtype=weights, device=device)
    )
    folder = open_model(model)
    import_torch()
    from outrider.bench.adaptive.start_adaptive import bench_adaptive  # imports torch

    bench_adaptive(model, folder, args, json_path=json_file, threads=threads)
