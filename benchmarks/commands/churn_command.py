"""`python -m benchmarks churn`: a load of requests that come and go."""

from dataclasses import replace
from typing import Annotated

import typer

from benchmarks.commands.step_commands import (
    BodyFlag,
    DeterministicFlag,
    DeviceFlag,
    DtypeFlag,
    ExecutorFlag,
    LayersFlag,
    PlaceFlags,
    QuantizationFlag,
)
from outrider.cli.bench_flags import JsonFlag, check_json
from outrider.frontend.interrupts import import_torch


def churn(
    body: BodyFlag = "llama-8b",
    layers: LayersFlag = 0,
    rows: Annotated[str, typer.Option(help="Requests at a time, a comma list.")] = "8,32,64",
    requests: Annotated[int, typer.Option(help="Requests of a load.", min=1)] = 256,
    requests_per_row: Annotated[
        int, typer.Option(help="Requests of a load for each row, at most.", min=2)
    ] = 32,
    prompt: Annotated[int, typer.Option(help="Mean tokens of a prompt.", min=1)] = 86,
    answer: Annotated[int, typer.Option(help="Tokens of every answer.", min=1)] = 128,
    ways: Annotated[
        str, typer.Option(help="How to decode: plain, fixed, adaptive.")
    ] = "plain,fixed,adaptive",
    draft_steps: Annotated[int, typer.Option(help="Length of a draft chain.", min=1)] = 4,
    simulate_acceptance: Annotated[
        float, typer.Option(help="Tokens a drafted round is made to emit, on average.")
    ] = 2.9,
    dtype: DtypeFlag = "bfloat16",
    quantization: QuantizationFlag = "none",
    device: DeviceFlag = "auto",
    executor: ExecutorFlag = "auto",
    deterministic: DeterministicFlag = True,
    lazy: Annotated[
        bool, typer.Option("--lazy", help="Capture shapes when they come, not at start.")
    ] = False,
    json_file: JsonFlag = None,
) -> None:
    """Requests that come and go: tokens/s, and where the time of steps goes."""
    from benchmarks.churn.random_churn import RandomChurn
    from benchmarks.steps.body import find_body
    from outrider.bench.churn.churn_work import ChurnWork, parse_ways
    from outrider.bench.offline.offline_args import parse_rows

    work = ChurnWork(
        rows=parse_rows(rows),
        requests=requests,
        per_row=requests_per_row,
        answer=answer,
        ways=parse_ways(ways),
    )
    load = RandomChurn(
        work=work,
        prompt=prompt,
        draft_steps=draft_steps,
        emitted=simulate_acceptance,
    )
    flags = PlaceFlags(
        dtype=dtype,
        quantization=quantization,
        device=device,
        executor=executor,
        deterministic=deterministic,
    )
    place = replace(flags.place(), captures_at_start=not lazy)
    chosen = find_body(body, layers=layers)
    check_json(json_file)
    import_torch()
    from benchmarks.churn.start_churn import bench_churn  # imports torch, so wrong flags fail first

    bench_churn(load, chosen, place, json_file)
