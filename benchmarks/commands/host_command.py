"""`python -m benchmarks host`: the host's share of a step."""

from typing import Annotated

import typer

from outrider.cli.bench_flags import JsonFlag, check_json
from outrider.frontend.interrupts import import_torch


def host(
    rows: Annotated[str, typer.Option(help="Numbers of rows, a comma list.")] = "1,64,256",
    draft_steps: Annotated[
        int,
        typer.Option(
            help="Also a chain of so many drafts; 0: plain decoding alone.", min=0, max=63
        ),
    ] = 5,
    emitted: Annotated[int, typer.Option(help="Tokens per row and chain.", min=1)] = 3,
    tokens: Annotated[int, typer.Option(help="Steps that are timed in each case.", min=2)] = 200,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "cpu",
    profile: Annotated[
        bool, typer.Option("--profile", help="Also show which functions the time goes to.")
    ] = False,
    json_file: JsonFlag = None,
) -> None:
    """The host's share of a step: the whole engine over a device that takes no time."""
    from benchmarks.host.host_args import HostArgs
    from outrider.bench.offline.offline_args import parse_rows

    args = HostArgs(
        rows=parse_rows(rows),
        draft_steps=draft_steps,
        emitted=emitted,
        steps=tokens,
        has_profile=profile,
    )
    check_json(json_file)
    import_torch()
    from benchmarks.host.start_host import bench_host  # imports torch, so wrong flags fail first

    bench_host(args, device, json_file)
