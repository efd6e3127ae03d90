"""Our engines for a load: one model in memory, a runner for every way and number of rows."""

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from outrider.bench.churn.churn_args import ChurnArgs
from outrider.bench.churn.churn_run import ChurnRun
from outrider.bench.churn.churn_work import Way
from outrider.bench.churn.run_churn import AHEAD, TokenIds, run_churn
from outrider.config.draft_config import NO_DRAFT
from outrider.config.engine_config import CacheConfig, EngineConfig, ExecutionConfig, LimitsConfig
from outrider.config.settings import Settings, resolve_settings
from outrider.models.target import AnyTarget, load_target, read_target
from outrider.runtime.build_runner import assemble_runner, choose_buckets
from outrider.runtime.draft_kinds import DraftKind
from outrider.runtime.load_draft import fit_draft, load_draft


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnTarget:
    """A model with its weights on the device, shared by all runs."""

    folder: Path
    model: AnyTarget
    args: ChurnArgs
    context: int  # tokens of the longest prompt and its answer


def load_churn_target(folder: Path, args: ChurnArgs, *, context: int) -> ChurnTarget:
    """Load the weights once."""
    settings = churn_settings(folder, args, way="plain", rows=1, context=context)
    model = load_target(
        folder,
        dtype=settings.dtype,
        device=torch.device(settings.device),
        arithmetic=settings.execution.arithmetic,
    )
    return ChurnTarget(folder=folder, model=model, args=args, context=context)


def measure_way(
    target: ChurnTarget, prompts: Sequence[TokenIds], *, way: Way, rows: int
) -> ChurnRun:
    """Run the load in one way with one number of rows, on an engine without a prefix cache."""
    _free_memory()
    began = time.perf_counter()
    settings = churn_settings(
        target.folder, target.args, way=way, rows=rows, context=target.context
    )
    draft = _load_draft(target, settings, way)
    page_size, budget = settings.host.page_size, draft.facts.budget
    runner, facts = assemble_runner(
        target.model,
        settings,
        draft=draft,
        # Pages to spare, so that all rows run at a time.
        kv_tokens=rows * (target.context + 2 * budget.reach(0) + 2 * page_size),
        buckets=choose_buckets(settings, draft),
    )
    start_s = time.perf_counter() - began
    return run_churn(runner, facts, prompts, target.args.work, way=way, start_s=start_s)


def churn_settings(folder: Path, args: ChurnArgs, *, way: Way, rows: int, context: int) -> Settings:
    """The engine's settings: its own, besides the size of the load."""
    found = read_target(folder)
    config = EngineConfig(
        dtype=args.place.dtype,
        device=args.place.device,
        execution=ExecutionConfig(record="at start"),
        cache=CacheConfig(prefix=False),  # else the warm-up would cache the prompts
        limits=LimitsConfig(context=context, rows=rows, queued=2 * rows + AHEAD),
        draft=NO_DRAFT if way == "plain" else fit_draft(args.draft, folder),
    )
    return resolve_settings(
        config,
        model_context=found.max_context,
        num_cuda=torch.cuda.device_count(),
        usual_page=found.usual_page_size,
    )


def _load_draft(target: ChurnTarget, settings: Settings, way: Way) -> DraftKind:
    wanted = NO_DRAFT if way == "plain" else fit_draft(target.args.draft, target.folder)
    return load_draft(
        replace(wanted, adaptive=way == "adaptive"),
        target=target.model,
        target_folder=target.folder,
        dtype=settings.dtype,
        arithmetic=settings.execution.arithmetic,
        max_context=settings.host.max_context,
    )


def _free_memory() -> None:
    """Engines hold reference cycles, and the last one may still hold its KV."""
    gc.collect()
    torch.cuda.empty_cache()  # without a GPU it does nothing
