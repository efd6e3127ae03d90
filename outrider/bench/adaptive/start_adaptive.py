"""`outrider bench adaptive`, from checked flags to a printed report."""

from collections.abc import Iterator
from pathlib import Path

from outrider.bench.adaptive.adaptive_args import AdaptiveArgs
from outrider.bench.adaptive.adaptive_table import describe_adaptive, print_adaptive
from outrider.bench.adaptive.run_adaptive import Note, load_ways, measure_cell, warm_up
from outrider.bench.adaptive.timed_round import AdaptiveCell
from outrider.bench.machine import Machine, this_machine
from outrider.bench.offline.start_offline import set_threads
from outrider.bench.offline.workload import encode_fitting
from outrider.bench.report import SettingLine, describe_record, write_report
from outrider.bench.run_progress import run_bar
from outrider.bench.shared_target import bench_settings, load_shared_target
from outrider.config.draft_config import NO_DRAFT
from outrider.models.target import read_target

_SPARE = 8  # tokens of context beyond the longest request


def bench_adaptive(
    model: str, folder: Path, args: AdaptiveArgs, *, json_path: Path | None, threads: int
) -> None:
    """Measure, print, and write the JSON file if one is wanted."""
    set_threads(threads)
    work = args.work
    machine = this_machine(has_busy_neighbour=False)
    settings = bench_settings(folder, args.place, NO_DRAFT, rows=1, context=work.answer)
    setting = {"model": model, "dtype": settings.dtype, "device": settings.device}
    described, cells = _describe(setting, args, machine), list[AdaptiveCell]()
    num_runs = 1 + len(work.rows) * len(args.texts) * work.starts
    with run_bar(num_runs) as note:
        for cell in _cells(folder, args, note):
            cells.append(cell)  # and written: a benchmark that is ended keeps what it measured
            write_report(json_path, described | describe_adaptive(cells))
    where = f"{settings.dtype} on {settings.device}"
    print_adaptive(list(_setting(model, args, machine, where)), cells)


def _cells(folder: Path, args: AdaptiveArgs, note: Note) -> Iterator[AdaptiveCell]:
    """All kinds of text with all numbers of rows, after a warm-up of the process."""
    work = args.work
    prompts = [encode_fitting(folder, text.prompts, answer=work.answer) for text in args.texts]
    longest = max(len(each) for encoded in prompts for each in encoded) + work.answer
    context = min(longest + _SPARE, read_target(folder).max_context)
    note("warming up")
    target = load_shared_target(folder, args.place, context=context)
    ways = load_ways(target, args.draft, has_fixed=work.has_fixed)
    warm_up(target, ways, prompts[0][0], rows=max(work.rows))
    for text, encoded in zip(args.texts, prompts, strict=True):
        for rows in work.rows:
            yield measure_cell(target, ways, work, encoded, text=text, rows=rows, note=note)


def _setting(model: str, args: AdaptiveArgs, machine: Machine, where: str) -> Iterator[SettingLine]:
    work = args.work
    yield "model", f"{model}, {where}"
    yield "machine", str(machine)
    yield (
        "work",
        f"{work.starts} fresh engines of each way, {work.rounds} rounds each, "
        f"{work.answer} tokens an answer",
    )
    yield "drafter", Path(args.draft.drafter).name


def _describe(setting: dict[str, str], args: AdaptiveArgs, machine: Machine) -> dict[str, object]:
    return {
        **setting,
        "machine": describe_record(machine),
        "work": describe_record(args.work),
        "draft": describe_record(args.draft),
    }
