"""`python -m benchmarks roles`: what it costs to get a prompt from another server."""

from typing import Annotated, Literal

import typer

from outrider.hub.aliases import DEFAULT_ALIAS


def roles(
    model: Annotated[str, typer.Option(help="An alias or a folder.")] = DEFAULT_ALIAS,
    backend: Annotated[Literal["nixl", "tcp"], typer.Option(help="What moves the pages.")] = "tcp",
    lengths: Annotated[str, typer.Option(help="Tokens of the prompts.")] = "256,1024,4096",
    device: Annotated[str, typer.Option(help="Of both servers.")] = "auto",
    draft: Annotated[str, typer.Option(help="Drafter of both servers.")] = "auto",
) -> None:
    """Time prompts that one server computes and another decodes."""
    from benchmarks.roles.time_transfers import time_transfers

    flags = ("--device", device, "--draft", draft)
    print(f"{'tokens':>8} {'MB':>8} {'prefill':>10} {'then first token':>17} {'alone':>10}   ms")
    for each in time_transfers(model, backend, [int(n) for n in lengths.split(",")], flags):
        times = (each.prefill_s, each.first_token_s, each.alone_s)
        prefill, first, alone = (f"{1e3 * seconds:.1f}" for seconds in times)
        sizes = f"{each.num_tokens:>8} {each.num_bytes / 1e6:>8.1f}"
        print(f"{sizes} {prefill:>10} {first:>17} {alone:>10}")
