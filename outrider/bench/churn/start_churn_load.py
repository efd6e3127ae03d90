"""`outrider bench offline --churn`, from checked flags to a printed report."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from outrider.bench.churn.churn_args import ChurnArgs
from outrider.bench.churn.churn_engines import measure_way
from outrider.bench.churn.churn_peers import peer_ways, run_peers
from outrider.bench.churn.churn_run import ChurnRun, PeerRun
from outrider.bench.churn.churn_table import describe_churn, print_churn
from outrider.bench.churn.churn_work import ChurnWork
from outrider.bench.churn.plot_churn import plot_churn
from outrider.bench.churn.run_churn import Note, TokenIds
from outrider.bench.machine import Machine, this_machine
from outrider.bench.offline.start_offline import set_threads
from outrider.bench.offline.workload import encode_fitting
from outrider.bench.report import SettingLine, describe_record, write_report
from outrider.bench.run_progress import run_bar
from outrider.bench.shared_target import bench_settings, load_shared_target
from outrider.config.draft_config import NO_DRAFT, NONE
from outrider.models.target import read_target

_SPARE = 8  # tokens of context beyond the longest request


def bench_churn_load(
    model: str,
    folder: Path,
    args: ChurnArgs,
    *,
    json_path: Path | None,
    picture_path: Path | None,
    threads: int,
) -> None:
    """Measure, print, and write the files that are wanted."""
    set_threads(threads)
    max_context = read_target(folder).max_context
    prompts = encode_fitting(folder, args.texts, answer=args.work.answer)
    longest = max(map(len, prompts)) + args.work.answer
    context = min(longest + _SPARE, max_context)
    settings = bench_settings(folder, args.place, NO_DRAFT, rows=1, context=context)
    machine = this_machine(has_busy_neighbour=False)
    where = f"{settings.dtype} on {settings.device}"
    setting = {"model": model, "dtype": settings.dtype, "device": settings.device}
    described = _describe(setting, args, machine)
    runs: list[ChurnRun] = []
    peers: list[PeerRun] = []
    num_runs = len(args.work.rows) * (len(args.work.ways) + len(peer_ways(args)))
    with run_bar(num_runs) as note:
        for peer in run_peers(
            folder, args, prompts, dtype=settings.dtype, context=context, note=note
        ):
            peers.append(peer)
            write_report(json_path, described | describe_churn(runs, peers))
        for run in _run_ways(folder, args, prompts, context=context, note=note):
            runs.append(run)  # and written: a benchmark that is ended keeps what it measured
            write_report(json_path, described | describe_churn(runs, peers))
    print_churn(list(_setting(model, args, prompts, machine, where)), runs, peers)
    if picture_path is not None:
        plot_churn(f"{model}: {where}, {_show_requests(args.work)}", runs, peers, picture_path)


def _run_ways(
    folder: Path, args: ChurnArgs, prompts: Sequence[TokenIds], *, context: int, note: Note
) -> Iterator[ChurnRun]:
    target = load_shared_target(folder, args.place, context=context)
    for way in args.work.ways:
        yield from measure_way(target, args, prompts, way=way, note=note)


def _setting(
    model: str, args: ChurnArgs, prompts: Sequence[TokenIds], machine: Machine, where: str
) -> Iterator[SettingLine]:
    work, mean = args.work, sum(map(len, prompts)) / len(prompts)
    yield "model", f"{model}, {where}"
    yield "machine", str(machine)
    yield (
        "load",
        f"{_show_requests(work)}, {work.answer} new tokens each, greedy; "
        f"{len(prompts)} prompts of {args.origin} in turn, {mean:.0f} tokens on average",
    )
    if args.draft.drafter != NONE:
        yield "drafter", Path(args.draft.drafter).name
    for peer in args.peers:
        yield "engine", f"{peer.name} {peer.version}"


def _show_requests(work: ChurnWork) -> str:
    fewest, most = (work.num_requests(rows) for rows in (min(work.rows), work.most_rows))
    return f"{most} requests" if fewest == most else f"{fewest} to {most} requests"


def _describe(setting: dict[str, str], args: ChurnArgs, machine: Machine) -> dict[str, object]:
    return {
        **setting,
        "machine": describe_record(machine),
        "load": describe_record(args.work) | {"origin": args.origin},
        "draft": describe_record(args.draft),
    }
