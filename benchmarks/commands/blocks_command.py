"""`python -m benchmarks blocks`: rounds of heads that draft a block, against their floors."""

from typing import Annotated

import typer

from benchmarks.commands.step_commands import (
    BodyFlag,
    ContextFlag,
    LayersFlag,
    PlaceFlags,
    PromptFlag,
    RowsFlag,
    StepsFlag,
)
from outrider.cli.bench_flags import JsonFlag, check_json
from outrider.cli.flags import expand_flags
from outrider.frontend.interrupts import import_torch


@expand_flags
def blocks(
    *,
    body: BodyFlag = "llama-8b",
    layers: LayersFlag = 0,
    kind: Annotated[str, typer.Option(help="dflash, or dspark with a Markov head.")] = "dflash",
    head_layers: Annotated[str, typer.Option(help="Layers of the heads, a comma list.")] = "5,2",
    trees: Annotated[
        str, typer.Option(help="Chains by their length, trees as topk x nodes; a comma list.")
    ] = "7,15,4x16,4x32,4x64",
    tree_drafts: Annotated[
        int, typer.Option(help="Drafts of a block under a tree.", min=1, max=63)
    ] = 15,
    simulate_acceptance: Annotated[
        float, typer.Option(help="Tokens a round is made to emit, on average.")
    ] = 4.0,
    rows: RowsFlag = "1,8,32,64",
    prompt: PromptFlag = 128,
    context: ContextFlag = 0,
    tokens: StepsFlag = 64,
    place_flags: PlaceFlags,
    json_file: JsonFlag = None,
) -> None:
    """Rounds of random heads that draft a block: real work, forced acceptance, one table."""
    from benchmarks.steps.block_args import block_shapes, parse_kind
    from benchmarks.steps.body import find_body
    from benchmarks.steps.step_args import plan_work
    from outrider.bench.offline.offline_args import parse_rows

    shapes = tuple(
        block_shapes(
            parse_kind(kind),
            layers=parse_rows(head_layers),
            trees=trees,
            tree_drafts=tree_drafts,
            mean_emitted=simulate_acceptance,
        )
    )
    chosen, place = find_body(body, layers=layers), place_flags.place()
    work = plan_work(
        parse_rows(rows),
        prompt=prompt,
        context=context,
        steps=tokens,
        emitted=simulate_acceptance,
        nodes=max(shape.tree.nodes for shape in shapes),
    )
    check_json(json_file)
    import_torch()
    from benchmarks.steps.time_blocks import bench_blocks  # imports torch

    bench_blocks(chosen, shapes, place, work, json_file)
