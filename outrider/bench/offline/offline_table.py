"""Reports for people: a few lines about the setting, one table, a line on what it means."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from outrider.bench.offline.decode_floor import DecodeFloor
from outrider.bench.offline.offline_report import OURS, EngineResult, OfflineReport
from outrider.bench.perplexity import Perplexity

WIDTH = 100  # columns, wherever the output goes


def print_report(report: OfflineReport) -> None:
    """Print it on stdout."""
    console = Console(width=WIDTH, highlight=False)
    for line in _heading(report):
        console.print(line, markup=False, soft_wrap=True)
    console.print(_table(report))
    if report.is_floor_beaten:
        console.print("the floor was beaten: the machine was not quiet, measure again", style="red")
    console.print(
        "floor: bytes of weights and KV at the measured bandwidth, no computation\n"
        "of floor, vs: by tokens/s; vs a peer with equal weights, or else with its first",
        style="dim",
    )


def print_perplexities(model: str, num_texts: int, found: Sequence[Perplexity]) -> None:
    """Print them on stdout with the change against the first."""
    first = found[0]
    table = Table(box=None, header_style="bold")
    table.add_column("dtype")
    for heading in ("perplexity", f"vs {first.dtype}"):
        table.add_column(heading, justify="right")
    for each in found:
        table.add_row(each.dtype, f"{each.perplexity:.4f}", f"{each.change_from(first):+.3%}")
    console = Console(width=WIDTH, highlight=False)
    console.print(f"{model}: {num_texts} texts, {first.num_tokens} tokens", markup=False)
    console.print(table)


def _heading(report: OfflineReport) -> Iterator[str]:
    setting, machine = report.setting, report.setting.machine
    lengths = setting.workload.lengths
    neighbour = "one busy process beside" if machine.has_busy_neighbour else "no neighbour"
    yield f"model      {setting.model}"
    yield (
        f"machine    {machine.cpu}, {machine.cores} cores, {machine.threads} threads, "
        f"torch {machine.torch}, {neighbour}"
    )
    yield (
        f"shapes     {lengths.prompt} prompt tokens ({setting.workload.origin}), "
        f"{lengths.answer} new tokens, greedy, mean context {lengths.mean_context:g}"
    )
    yield f"bandwidth  {setting.bandwidth / 1e9:.1f} GB/s read, measured"
    for result in report.results:
        first_ms = result.first_token_s * 1e3
        name = f"{result.engine} {result.version} {result.dtype}"
        yield f"engine     {name}, first token of a single request after {first_ms:.1f} ms"
    for name in report.missing:
        yield f"engine     {name}: not installed"


def _table(report: OfflineReport) -> Table:
    table = Table(box=None, header_style="bold")
    table.add_column("batch", justify="right")
    table.add_column("engine", no_wrap=True)
    table.add_column("dtype")
    for heading in ("tokens/s", "ms/step", "of floor"):
        table.add_column(heading, justify="right")
    for peer in report.peers:
        table.add_column(f"vs {peer}", justify="right")
    for batch in report.batches:
        for result in report.results:
            table.add_row(*_row(report, result, batch))
        for floor in report.floors:
            if floor.batch == batch:
                table.add_row(*_floor_row(floor), style="dim")
        table.add_section()
    return table


def _row(report: OfflineReport, result: EngineResult, batch: int) -> list[str]:
    decode, is_ours = result.at(batch), result.engine == OURS
    return [
        str(batch),
        result.engine,
        result.dtype,
        f"{decode.tokens_per_s:.1f}",
        f"{decode.step_s * 1e3:.2f}",
        f"{report.of_floor(result, batch):.0%}",
        *(f"{report.against(peer, result, batch):.2f}x" for peer in report.peers if is_ours),
    ]


def _floor_row(floor: DecodeFloor) -> list[str]:
    return [
        str(floor.batch),
        "floor",
        floor.dtype,
        f"{floor.tokens_per_s:.1f}",
        f"{floor.step_s * 1e3:.2f}",
    ]
