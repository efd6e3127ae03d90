"""A model in memory that several engines of a benchmark share."""

from dataclasses import dataclass
from pathlib import Path

import torch

from outrider.bench.churn.churn_args import ChurnPlace
from outrider.config.draft_config import NO_DRAFT, DraftConfig, fit_usual
from outrider.config.engine_config import CacheConfig, EngineConfig, ExecutionConfig, LimitsConfig
from outrider.config.settings import Settings, resolve_settings
from outrider.models.target import AnyTarget, load_target, read_target
from outrider.runtime.build_runner import assemble_runner, choose_buckets
from outrider.runtime.draft_kinds import DraftKind
from outrider.runtime.load_draft import fit_draft, load_draft
from outrider.runtime.runner import Runner
from outrider.wire.runner_facts import RunnerFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTarget:
    """A model with its weights on the device."""

    folder: Path
    model: AnyTarget
    place: ChurnPlace
    context: int  # tokens of the longest prompt and its answer


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedDraft:
    """A drafter with its weights on the device."""

    config: DraftConfig  # as `fit_draft` returns it
    kind: DraftKind


def load_shared_target(folder: Path, place: ChurnPlace, *, context: int) -> SharedTarget:
    """Load the weights once."""
    settings = bench_settings(folder, place, NO_DRAFT, rows=1, context=context)
    model = load_target(
        folder,
        dtype=settings.dtype,
        device=torch.device(settings.device),
        arithmetic=settings.execution.arithmetic,
        max_context=settings.host.max_context,
    )
    return SharedTarget(folder=folder, model=model, place=place, context=context)


def fit_shared_draft(target: SharedTarget, draft: DraftConfig) -> DraftConfig:
    """The config with tree sizes that suit the target."""
    settings = _settings_of(target, NO_DRAFT, rows=1)
    fitted = fit_usual(draft, settings.dtype, on_cpu=settings.device == "cpu")
    return fit_draft(fitted, target.folder)


def load_shared_draft(target: SharedTarget, draft: DraftConfig) -> SharedDraft:
    """Load a drafter once."""
    config = fit_shared_draft(target, draft)
    settings = _settings_of(target, config, rows=1)
    kind = load_draft(
        config,
        target=target.model,
        target_folder=target.folder,
        dtype=settings.dtype,
        arithmetic=settings.execution.arithmetic,
        max_context=settings.host.max_context,
    )
    return SharedDraft(config=config, kind=kind)


def build_runner(
    target: SharedTarget, draft: SharedDraft, *, rows: int
) -> tuple[Runner, RunnerFacts]:
    """A runner without a prefix cache. It has pages to spare, so that all rows run at a time."""
    settings = _settings_of(target, draft.config, rows=rows)
    page_size, budget = settings.host.page_size, draft.kind.facts.budget
    return assemble_runner(
        target.model,
        settings,
        draft=draft.kind,
        kv_tokens=rows * (target.context + 2 * budget.reach(0) + 2 * page_size),
        buckets=choose_buckets(settings, draft.kind),
    )


def bench_settings(
    folder: Path, place: ChurnPlace, draft: DraftConfig, *, rows: int, context: int
) -> Settings:
    """The engine's settings: its own, besides the size of the load."""
    found = read_target(folder)
    config = EngineConfig(
        dtype=place.dtype,
        device=place.device,
        execution=ExecutionConfig(record="at start"),
        cache=CacheConfig(prefix=False),  # else a first run would cache the prompts
        limits=LimitsConfig(context=context, rows=rows, queued=2 * rows),
        draft=draft,
    )
    return resolve_settings(
        config,
        model_context=found.max_context,
        num_cuda=torch.cuda.device_count(),
        usual_page=found.usual_page_size,
    )


def _settings_of(target: SharedTarget, draft: DraftConfig, *, rows: int) -> Settings:
    return bench_settings(target.folder, target.place, draft, rows=rows, context=target.context)
