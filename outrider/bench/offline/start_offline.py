"""`outrider bench offline` and `perplexity`, from checked flags to a printed report."""

from collections.abc import Sequence
from pathlib import Path

import torch

from outrider.bench.offline.offline_args import OfflineArgs
from outrider.bench.offline.offline_table import describe_offline, print_offline
from outrider.bench.offline.run_offline import count_offline_runs, run_offline
from outrider.bench.offline.workload import file_workload, random_workload
from outrider.bench.peers.peer_protocol import PeerModel
from outrider.bench.perplexity import encode_texts, measure_perplexity
from outrider.bench.perplexity_report import describe_perplexities, print_perplexities
from outrider.bench.report import write_report
from outrider.bench.run_progress import run_bar
from outrider.config.engine_config import Dtype


def bench_offline(
    model: str,
    folder: Path,
    args: OfflineArgs,
    *,
    prompts_path: Path | None,  # None: random prompts
    json_path: Path | None,
    threads: int,
) -> None:
    """Measure, print, and write the JSON file if one is wanted."""
    set_threads(threads)
    num_prompts = max(args.batches)
    if prompts_path is None:
        workload = random_workload(folder, args.lengths, num_prompts=num_prompts)
    else:
        workload = file_workload(folder, args.lengths, path=prompts_path, num_prompts=num_prompts)
    path = Path(model).expanduser()
    source = PeerModel(folder=folder, gguf=path if path.suffix == ".gguf" else None)
    with run_bar(count_offline_runs(args, source)) as note:
        report = run_offline(model, source, args, workload, note)
    print_offline(report)
    write_report(json_path, describe_offline(report))


def bench_perplexity(
    model: str,
    folder: Path,
    dtypes: tuple[Dtype, ...],
    *,
    texts: Sequence[str],
    json_path: Path | None,
    threads: int,
) -> None:
    """Score the texts with each type of weights, print, and write the JSON file if wanted."""
    set_threads(threads)
    encoded = encode_texts(folder, texts)
    with run_bar(len(dtypes) * len(encoded)) as note:
        perplexities = [measure_perplexity(folder, dtype, encoded, note) for dtype in dtypes]
    print_perplexities(model, len(encoded), perplexities)
    write_report(json_path, describe_perplexities(model, len(encoded), perplexities))


def set_threads(threads: int) -> None:
    """Compute with that many threads; 0 leaves the choice to torch."""
    if threads:
        torch.set_num_threads(threads)
