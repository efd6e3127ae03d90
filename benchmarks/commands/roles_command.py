"""`python -m benchmarks roles`: the cost of a prompt from another server, and what it gains."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from outrider.cli.bench_flags import JsonFlag, check_json
from outrider.hub.aliases import DEFAULT_ALIAS

if TYPE_CHECKING:
    from benchmarks.roles.parts_file import PartsFile
    from benchmarks.roles.servers import Pair
    from benchmarks.roles.time_streams import StreamLoad

_WORDS = ("quiet p50", "p99", "busy p50", "p99", "longest", "first token", "accepted")


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
    rows: Annotated[int, typer.Option(help="Most answers at a time on a server.")] = 64,
    share: Annotated[float, typer.Option(help="Of a GPU's memory, for each server.")] = 0.4,
    limit_s: Annotated[float, typer.Option(min=0, help="Ends the run; 0: does not.")] = 0.0,
    json_file: JsonFlag = None,
) -> None:
    """Time prompts that one server computes and another decodes."""
    check_json(json_file)
    from benchmarks.roles.parts_file import PartsFile
    from benchmarks.roles.servers import one_server, two_servers
    from benchmarks.roles.time_limit import time_limit
    from benchmarks.roles.time_streams import StreamLoad

    limits = ("--max-num-seqs", str(rows), "--gpu-memory-utilization", str(share))
    flags = ("--device", device, "--draft", draft, *limits)
    load = StreamLoad(streams=streams, arrivals=arrivals, length=arrival_length)
    facts = {"model": model, "backend": backend, "flags": flags, "load": asdict(load)}
    parts = PartsFile(json_file, facts)
    with time_limit(limit_s):
        with two_servers(model, backend, flags) as pair:
            _print_transfers(pair, [int(each) for each in lengths.split(",")], parts)
            if streams:
                _print_streams("roles apart", pair, load, parts)
        if streams:
            with one_server(model, flags) as pair:
                _print_streams("one server", pair, load, parts)


def _print_transfers(pair: "Pair", lengths: list[int], parts: "PartsFile") -> None:
    from benchmarks.roles.time_transfers import time_transfers

    print(
        f"{'tokens':>8} {'MB':>8} {'of floor':>9} {'prefill':>10} {'then first token':>17} "
        f"{'alone':>10}   ms"
    )
    measured = []
    for each in time_transfers(pair, lengths):
        times = (each.prefill_s, each.first_token_s, each.alone_s)
        prefill, first, alone = (f"{1e3 * seconds:.1f}" for seconds in times)
        ratio = each.num_bytes / max(each.floor_bytes, 1)
        sizes = f"{each.num_tokens:>8} {each.num_bytes / 1e6:>8.1f} {ratio:>9.4f}"
        print(f"{sizes} {prefill:>10} {first:>17} {alone:>10}", flush=True)
        measured.append(asdict(each))
        parts.add("transfers", measured)


def _print_streams(name: str, pair: "Pair", load: "StreamLoad", parts: "PartsFile") -> None:
    from benchmarks.roles.time_streams import describe_summary, summarise, time_streams

    print(f"{load.streams} answers at a time, {load.arrivals} prompts of {load.length} tokens")
    print(f"{'':<14}" + "".join(f"{word:>12}" for word in _WORDS) + "   ms, tokens per round")
    summary = summarise(time_streams(pair, load))
    print(describe_summary(name, summary), flush=True)
    parts.add(name, summary)
