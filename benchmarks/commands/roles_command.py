"""`python -m benchmarks roles`: the cost of a prompt from another server, and what it gains."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from outrider.hub.aliases import DEFAULT_ALIAS

if TYPE_CHECKING:
    from benchmarks.roles.time_streams import StreamLoad

_WORDS = ("quiet p50", "p99", "busy p50", "p99", "longest", "first token")


def roles(
    model: Annotated[str, typer.Option(help="An alias or a folder.")] = DEFAULT_ALIAS,
    backend: Annotated[Literal["nixl", "tcp"], typer.Option(help="What moves the pages.")] = "tcp",
    lengths: Annotated[str, typer.Option(help="Tokens of the prompts.")] = "256,1024,4096",
    device: Annotated[str, typer.Option(help="Of both servers.")] = "auto",
    draft: Annotated[str, typer.Option(help="Drafter of both servers.")] = "auto",
    streams: Annotated[
        int, typer.Option(min=0, help="Answers at a time beside long prompts; 0: do not.")
    ] = 0,
    arrivals: Annotated[int, typer.Option(min=1, help="Long prompts beside the answers.")] = 8,
    arrival_length: Annotated[int, typer.Option(help="Tokens of a long prompt.")] = 8192,
    share: Annotated[float, typer.Option(help="Of a GPU's memory, for each server.")] = 0.4,
) -> None:
    """Time prompts that one server computes and another decodes."""
    from benchmarks.roles.time_streams import StreamLoad
    from benchmarks.roles.time_transfers import time_transfers

    flags = ("--device", device, "--draft", draft, "--gpu-memory-utilization", str(share))
    if lengths:
        print(
            f"{'tokens':>8} {'MB':>8} {'prefill':>10} {'then first token':>17} {'alone':>10}   ms"
        )
        for each in time_transfers(model, backend, [int(n) for n in lengths.split(",")], flags):
            times = (each.prefill_s, each.first_token_s, each.alone_s)
            prefill, first, alone = (f"{1e3 * seconds:.1f}" for seconds in times)
            sizes = f"{each.num_tokens:>8} {each.num_bytes / 1e6:>8.1f}"
            print(f"{sizes} {prefill:>10} {first:>17} {alone:>10}", flush=True)
    if streams:
        load = StreamLoad(streams=streams, arrivals=arrivals, length=arrival_length)
        _print_streams(model, backend, load, flags)


def _print_streams(model: str, backend: str, load: "StreamLoad", flags: tuple[str, ...]) -> None:
    from benchmarks.roles.servers import one_server, two_servers
    from benchmarks.roles.time_streams import describe_report, time_streams

    print(f"{load.streams} answers at a time, {load.arrivals} prompts of {load.length} tokens")
    print(f"{'':<14}" + "".join(f"{word:>12}" for word in _WORDS) + "   ms")
    for name, servers in (
        ("one server", one_server(model, flags)),
        ("roles apart", two_servers(model, backend, flags)),
    ):
        with servers as pair:
            print(*describe_report(name, time_streams(pair, load)), sep="\n", flush=True)
