"""`python -m benchmarks never-slower`: adaptive drafting, plain decoding and fixed chains."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.commands.step_commands import BodyFlag, LayersFlag, PlaceFlags
from outrider.bench.json_file import check_target
from outrider.cli.bench_flags import JsonFlag, check_json
from outrider.cli.flags import expand_flags
from outrider.frontend.interrupts import import_torch


@expand_flags
def never_slower(
    *,
    body: BodyFlag = "llama-8b",
    layers: LayersFlag = 0,
    rows: Annotated[
        str, typer.Option(help="Requests at a time, a comma list.")
    ] = "1,2,4,8,16,32,64,128,256",
    kinds: Annotated[str, typer.Option(help="Loads: steady, churn.")] = "steady,churn",
    texts: Annotated[
        str, typer.Option(help="Texts, and the chance of each draft to be accepted.")
    ] = "easy=0.9,mixed=0.5,hard=0.1",
    chains: Annotated[
        str, typer.Option(help="Fixed chains; adaptive drafting chooses up to the longest.")
    ] = "2,4",
    prompt: Annotated[int, typer.Option(help="Mean tokens of a prompt.", min=1)] = 86,
    answer: Annotated[int, typer.Option(help="Tokens of an answer under churn.", min=2)] = 64,
    steady_answer: Annotated[
        int, typer.Option(help="Tokens of a steady row, at most.", min=2)
    ] = 512,
    seconds: Annotated[
        float, typer.Option(help="Of a load with few rows; with 128 rows twice as much.", min=0.01)
    ] = 1.0,
    time_limit: Annotated[
        float,
        typer.Option(help="Seconds of the whole run; loads that do not fit are left out. 0: none."),
    ] = 400.0,
    keep_engines: Annotated[
        bool,
        typer.Option("--keep-engines", help="Do not learn anew in every load: keep the engines."),
    ] = False,
    place_flags: PlaceFlags,
    json_file: JsonFlag = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Also write the table to this file.")
    ] = None,
) -> None:
    """Adaptive drafting against plain decoding and fixed chains: one table of all loads.

    Random weights; each draft is accepted by chance. Files are written after every load.
    """
    from benchmarks.never_slower.never_args import (
        NeverLimits,
        NeverWork,
        parse_chains,
        parse_kinds,
        parse_texts,
    )
    from benchmarks.steps.body import find_body
    from outrider.bench.offline.offline_args import parse_rows

    work = NeverWork(
        rows=parse_rows(rows),
        kinds=parse_kinds(kinds),
        texts=parse_texts(texts),
        chains=parse_chains(chains),
        limits=NeverLimits(
            prompt=prompt, answer=answer, steady_answer=steady_answer, seconds=seconds
        ),
        keeps_engines=keep_engines,
    )
    place = replace(place_flags.place(), captures_at_start=True)
    chosen = find_body(body, layers=layers)
    check_json(json_file)
    if markdown is not None:
        check_target(markdown)
    import_torch()
    from benchmarks.never_slower.start_never import NeverFiles, bench_never_slower  # imports torch

    files = NeverFiles(json_path=json_file, markdown_path=markdown)
    bench_never_slower(work, chosen, place, files, limit_s=time_limit or math.inf)
