"""From checked flags to a printed report: the body of each `outrider bench` command."""

from collections.abc import Sequence
from pathlib import Path

import torch

from outrider.bench.json_file import write_json
from outrider.bench.offline.offline_args import OfflineArgs
from outrider.bench.offline.offline_record import describe, describe_perplexities
from outrider.bench.offline.offline_table import print_perplexities, print_report
from outrider.bench.offline.run_offline import count_runs, run_offline
from outrider.bench.offline.workload import file_workload, random_workload
from outrider.bench.perplexity import encode_texts, measure_perplexity
from outrider.bench.run_progress import run_bar
from outrider.config.engine_config import Dtype

OWN_CHOICE = 0  # threads: torch decides


def bench_offline(
    model: str,
    folder: Path,
    args: OfflineArgs,
    *,
    prompt_files: Sequence[Path],  # one, or none for random prompts
    targets: Sequence[Path],  # JSON files to write
    threads: int,
) -> None:
    """Measure, print, and write what was asked to be written."""
    _set_threads(threads)
    num_prompts = max(args.batches)
    workload = random_workload(folder, args.lengths, num_prompts=num_prompts)
    for path in prompt_files:
        workload = file_workload(folder, args.lengths, path=path, num_prompts=num_prompts)
    with run_bar(count_runs(args)) as note:
        report = run_offline(model, folder, args, workload, note)
    print_report(report)
    for target in targets:
        write_json(target, describe(report))


def bench_perplexity(
    model: str,
    folder: Path,
    dtypes: tuple[Dtype, ...],
    *,
    texts: Sequence[str],
    targets: Sequence[Path],
    threads: int,
) -> None:
    """Score the texts with weights of each type, print, and write what was asked."""
    _set_threads(threads)
    encoded = encode_texts(folder, texts)
    with run_bar(len(dtypes) * len(encoded)) as note:
        found = [measure_perplexity(folder, dtype, encoded, note) for dtype in dtypes]
    print_perplexities(model, len(encoded), found)
    for target in targets:
        write_json(target, describe_perplexities(model, len(encoded), found))


def _set_threads(threads: int) -> None:
    if threads != OWN_CHOICE:
        torch.set_num_threads(threads)
