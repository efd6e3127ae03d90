"""Our engines for the loads: one model in memory, a runner for every way."""

import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from outrider.bench.churn.churn_args import ChurnArgs
from outrider.bench.churn.churn_run import ChurnRun
from outrider.bench.churn.churn_work import Way
from outrider.bench.churn.run_churn import Note, TokenIds, run_churn
from outrider.bench.shared_target import SharedTarget, build_runner, load_shared_draft
from outrider.config.draft_config import NO_DRAFT


def measure_way(
    target: SharedTarget, args: ChurnArgs, prompts: Sequence[TokenIds], *, way: Way, note: Note
) -> Iterator[ChurnRun]:
    """Run all loads in one way, on one engine without a prefix cache."""
    _free_memory()
    began, work = time.perf_counter(), args.work
    wanted = NO_DRAFT if way == "plain" else replace(args.draft, adaptive=way == "adaptive")
    draft = load_shared_draft(target, wanted)
    runner, facts = build_runner(target, draft, rows=work.most_rows)
    start_s = time.perf_counter() - began
    yield from run_churn(runner, facts, prompts, work, way=way, start_s=start_s, note=note)


def _free_memory() -> None:
    """Engines hold reference cycles, and the last one may still hold its KV."""
    gc.collect()
    torch.cuda.empty_cache()  # without a GPU it does nothing
