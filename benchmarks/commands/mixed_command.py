"""`python -m benchmarks mixed`: prompts beside decode rows, at equal numbers of query tokens."""

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
    RowsFlag,
    StepsFlag,
)
from outrider.cli.bench_flags import JsonFlag, check_json
from outrider.frontend.interrupts import import_torch


def mixed(
    body: BodyFlag = "llama-8b",
    layers: LayersFlag = 0,
    rows: RowsFlag = "8,64",
    lengths: Annotated[
        str, typer.Option(help="Tokens of a prompt, a comma list; whole rows of --nodes.")
    ] = "56,192,448",
    prompts: Annotated[int, typer.Option(help="Prompts that a step reads.", min=1)] = 1,
    nodes: Annotated[
        str, typer.Option(help="Query tokens of a decode row, a comma list; 1: plain.")
    ] = "1,4",
    tokens: StepsFlag = 24,
    dtype: DtypeFlag = "bfloat16",
    device: DeviceFlag = "auto",
    executor: ExecutorFlag = "auto",
    deterministic: DeterministicFlag = True,
    json_file: JsonFlag = None,
) -> None:
    """Steps of decode rows with prompts beside them, against decode steps of as many tokens."""
    from benchmarks.steps.body import find_body
    from benchmarks.steps.mixed_args import MixedWork
    from outrider.bench.offline.offline_args import parse_rows

    work = MixedWork(
        rows=parse_rows(rows),
        lengths=parse_rows(lengths),
        prompts=prompts,
        nodes=parse_rows(nodes),
        steps=tokens,
    )
    flags = PlaceFlags(dtype=dtype, device=device, executor=executor, deterministic=deterministic)
    chosen, place = find_body(body, layers=layers), flags.place()
    check_json(json_file)
    import_torch()
    from benchmarks.steps.start_mixed import bench_mixed  # imports torch, so wrong flags fail first

    bench_mixed(chosen, place, work, json_file)
