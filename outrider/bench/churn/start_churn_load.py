"""`outrider bench offline --churn`, from checked flags to a printed report."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from outrider.bench.churn.churn_args import ChurnArgs
from outrider.bench.churn.churn_engines import churn_settings, load_churn_target, measure_way
from outrider.bench.churn.churn_peers import Note, peer_ways, run_peers
from outrider.bench.churn.churn_run import ChurnRun
from outrider.bench.churn.churn_table import describe_churn, print_churn
from outrider.bench.churn.plot_churn import plot_churn
from outrider.bench.churn.run_churn import TokenIds
from outrider.bench.machine import Machine, this_machine
from outrider.bench.offline.start_offline import set_threads
from outrider.bench.offline.workload import encode_chat
from outrider.bench.report import SettingLine, describe_record, write_report
from outrider.bench.run_progress import run_bar
from outrider.config.draft_config import NONE
from outrider.errors import ConfigError
from outrider.frontend.tokenizer.tokenizer import load_tokenizer
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
    prompts = _encode(folder, args, max_context=max_context)
    longest = max(map(len, prompts)) + args.work.answer
    context = min(longest + _SPARE, max_context)
    settings = churn_settings(folder, args, way="plain", rows=1, context=context)
    num_runs = len(args.work.rows) * (len(args.work.ways) + len(peer_ways(args)))
    with run_bar(num_runs) as note:
        peers = list(
            run_peers(folder, args, prompts, dtype=settings.dtype, context=context, note=note)
        )
        runs = list(_run_ways(folder, args, prompts, context=context, note=note))
    machine = this_machine(has_busy_neighbour=False)
    where = f"{settings.dtype} on {settings.device}"
    print_churn(list(_setting(model, args, prompts, machine, where)), runs, peers)
    setting = {"model": model, "dtype": settings.dtype, "device": settings.device}
    write_report(json_path, _describe(setting, args, machine) | describe_churn(runs, peers))
    if picture_path is not None:
        plot_churn(f"{model}: {where}, {args.work.requests} requests", runs, peers, picture_path)


def _encode(folder: Path, args: ChurnArgs, *, max_context: int) -> list[TokenIds]:
    """The prompts as the chat template frames them; those that leave room for an answer."""
    tokenizer = load_tokenizer(folder)
    encoded = [tuple(encode_chat(tokenizer, text)) for text in args.texts]
    fitting = [each for each in encoded if len(each) + args.work.answer <= max_context]
    if not fitting:
        raise ConfigError(f"no prompt fits beside {args.work.answer} tokens; lower --max-tokens")
    return fitting


def _run_ways(
    folder: Path, args: ChurnArgs, prompts: Sequence[TokenIds], *, context: int, note: Note
) -> Iterator[ChurnRun]:
    target = load_churn_target(folder, args, context=context)
    for rows in args.work.rows:
        for way in args.work.ways:
            note(f"{way}, {rows} at a time")
            yield measure_way(target, prompts, way=way, rows=rows)


def _setting(
    model: str, args: ChurnArgs, prompts: Sequence[TokenIds], machine: Machine, where: str
) -> Iterator[SettingLine]:
    work, mean = args.work, sum(map(len, prompts)) / len(prompts)
    yield "model", f"{model}, {where}"
    yield "machine", str(machine)
    yield (
        "load",
        f"{work.requests} requests, {work.answer} new tokens each, greedy; "
        f"{len(prompts)} prompts of {args.origin} in turn, {mean:.0f} tokens on average",
    )
    if args.draft.drafter != NONE:
        yield "drafter", Path(args.draft.drafter).name
    for peer in args.peers:
        yield "engine", f"{peer.name} {peer.version}"


def _describe(setting: dict[str, str], args: ChurnArgs, machine: Machine) -> dict[str, object]:
    return {
        **setting,
        "machine": describe_record(machine),
        "load": describe_record(args.work) | {"origin": args.origin},
        "draft": describe_record(args.draft),
    }
