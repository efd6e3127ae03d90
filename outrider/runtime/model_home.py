"""From a model folder to a runner, and again after the engine has slept."""

import gc
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from outrider.config.draft_config import fit_usual
from outrider.config.engine_config import DRAFT_ARITHMETIC, Auto, EngineConfig
from outrider.config.process_heap import release_free_memory, tight_heap
from outrider.config.settings import Settings, resolve_dtype, resolve_settings, runs_on_cpu
from outrider.distributed.rank_group import ONE_RANK, RankGroup
from outrider.errors import CapacityError, ConfigError
from outrider.models.adapters.adapter_bank import AdapterBank, BankSizes
from outrider.models.quantised.announced_kv import tell_of_kv_scheme
from outrider.models.quantised.quantisation_files import read_quantisation
from outrider.models.target import AnyTarget, load_target, read_target
from outrider.models.vision.vision_tower import NO_TOWER, VisionTower, load_tower
from outrider.runtime.build_runner import assemble_runner, choose_buckets
from outrider.runtime.draft_kinds import DraftKind
from outrider.runtime.explain_memory import explain_memory
from outrider.runtime.kv_capacity import FixedPages, held_bytes
from outrider.runtime.load_draft import fit_draft, load_draft
from outrider.runtime.loaded_weights import LoadedWeights
from outrider.runtime.resolve_quantization import resolve_quantization
from outrider.runtime.runner import Runner
from outrider.structured.grammar_cache import GrammarCache, read_no_vocabulary
from outrider.wire.grammar_spec import Vocabulary
from outrider.wire.runner_facts import OnProgress, RunnerFacts, ignore_progress
from outrider.wire.sleep_level import SleepLevel

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModels:
    """What an engine computes with."""

    target: AnyTarget
    tower: VisionTower
    draft: DraftKind


class ModelHome:
    """Owns the target and its drafter. A runner around them can be dropped and built again.

    The runner is not held here: its memory is free as soon as the engine drops it.
    """

    def __init__(
        self,
        folder: Path,
        config: EngineConfig,
        read_vocabulary: Callable[[], Vocabulary] = read_no_vocabulary,
        ranks: RankGroup = ONE_RANK,
    ) -> None:
        """The vocabulary is read when the first grammar is compiled."""
        model_config = read_target(folder)
        self._folder = folder
        self._ranks = ranks
        num_cuda = torch.cuda.device_count()
        dtype = resolve_dtype(config, num_cuda=num_cuda)
        draft = fit_usual(config.draft, dtype, on_cpu=runs_on_cpu(config, num_cuda=num_cuda))
        self._config = replace(config, draft=fit_draft(draft, folder))
        self.settings = resolve_settings(
            self._config,
            model_context=model_config.max_context,
            num_cuda=num_cuda,
            usual_page=model_config.usual_page_size,
        )
        _log.info("%s", self.settings)
        tell_of_kv_scheme(read_quantisation(folder), self.settings.kv_dtype)
        self._device = torch.device(self.settings.device)
        self._grammars = GrammarCache(read_vocabulary, vocab_size=model_config.vocab_size)
        self._weights = LoadedWeights()
        self._models: LoadedModels | None = None  # until loaded, and at level 2
        self._kv_tokens: int | Auto | FixedPages = config.cache.kv_tokens
        self._row_snapshots = config.cache.row_snapshots

    def build(self, on_progress: OnProgress = ignore_progress) -> tuple[Runner, RunnerFacts]:
        """A runner, and what the deciding half must know about it."""
        before = held_bytes(self._device)
        loaded = self._load_models()
        runner, facts = assemble_runner(
            loaded.target,
            self.settings,
            draft=loaded.draft,
            tower=loaded.tower,
            weight_bytes=max(held_bytes(self._device) - before, 0),
            kv_tokens=self._kv_tokens,
            row_snapshots=self._row_snapshots,
            window_tokens=self._config.cache.window_tokens,
            buckets=choose_buckets(self.settings, loaded.draft),
            grammars=self._grammars,
            on_progress=on_progress,
            ranks=self._ranks,
        )
        self._kv_tokens = FixedPages(facts.num_pages, facts.memory.windows.num_pages)
        self._row_snapshots = facts.snapshots.num
        return runner, facts

    def offload(self, level: SleepLevel) -> None:
        """Take the weights off the device. On a CPU they are in host memory at level 1 anyway."""
        if level == 2:
            self._models, self._weights = None, LoadedWeights()
        elif self._device.type == "cuda":
            with _enough_host_memory():
                self._weights.offload()

    def release_memory(self) -> None:
        release_all_memory()

    def restore_weights(self) -> None:
        with _enough_free_memory():
            self._weights.restore()
            self._load_models()

    def build_again(self) -> Runner:
        with _enough_free_memory():
            runner, _ = self.build()
        return runner

    def use_head(self, folder: str) -> None:
        """Draft with the head in a folder from the next runner on. It has the sizes of the last."""
        models = self._load_models()
        config = replace(self._config, draft=replace(self._config.draft, drafter=folder))
        is_moved = self._device.type == "cuda"
        with self._weights.noting_more(self._device) if is_moved else nullcontext():
            draft = _load_draft(models.target, self._folder, config, self.settings, self._ranks)
        if draft.facts != models.draft.facts:  # the scheduler goes on with those of the first one
            raise ConfigError(f"{folder} drafts in another way than the head in use; restart")
        self._config, self._models = config, replace(models, draft=draft)

    def _load_models(self) -> LoadedModels:
        """The models; loaded unless they are in memory."""
        if self._models is None:
            # On a CPU weights are never moved, and the notes would import 120 MB of torch.
            is_moved = self._device.type == "cuda"
            with self._weights.noting(self._device) if is_moved else tight_heap():
                self._models = _load_models(self._folder, self._config, self.settings, self._ranks)
        return self._models


def release_all_memory() -> None:
    """Return what a dropped runner held, on the host and on all devices."""
    gc.collect()  # in case that the runner was part of a cycle
    release_free_memory()
    torch.cuda.empty_cache()  # does nothing without a GPU


def _load_models(
    folder: Path, config: EngineConfig, settings: Settings, ranks: RankGroup
) -> LoadedModels:
    """The target with its tower and drafter. Memory that loading leaves goes back to the system."""
    device = torch.device(settings.device)
    model = load_target(
        folder,
        dtype=settings.dtype,
        device=device,
        arithmetic=settings.execution.arithmetic,
        quantization=resolve_quantization(folder, config.quantization),
        ranks=ranks,
        bank=BankSizes(
            num_slots=settings.host.max_loras,
            max_rank=config.lora.max_rank,
            has_head=config.lora.for_drafts,
        ),
        max_context=settings.host.max_context,
    )
    tower: VisionTower = NO_TOWER
    if config.has_tower:
        tower = load_tower(folder, dtype=model.dtype, device=device)
    release_free_memory()  # or the drafter's peak would come on top of it
    draft = _load_draft(model, folder, config, settings, ranks)
    release_free_memory()
    return LoadedModels(target=model, tower=tower, draft=draft)


def _load_draft(
    target: AnyTarget, folder: Path, config: EngineConfig, settings: Settings, ranks: RankGroup
) -> DraftKind:
    draft = load_draft(
        config.draft,
        target=target,
        target_folder=folder,
        dtype=settings.dtype,
        arithmetic=DRAFT_ARITHMETIC,
        max_context=settings.host.max_context,
        ranks=ranks,
    )
    _check_draft_adapters(target, config)
    return draft


def _check_draft_adapters(target: AnyTarget, config: EngineConfig) -> None:
    bank = target.adapters
    if config.lora.for_drafts and not (isinstance(bank, AdapterBank) and bank.has_head):
        raise ConfigError(
            "--enable-draft-lora (enable_draft_lora) is for EAGLE and EAGLE-3 heads as --draft; "
            "use one, or leave it out"
        )


def _enough_host_memory() -> AbstractContextManager[None]:
    message = "there is no host memory for the weights; free some, or use level 2"
    return explain_memory(message, CapacityError)


def _enough_free_memory() -> AbstractContextManager[None]:
    message = "there is no memory to wake up; free some, then wake up again"
    return explain_memory(message, CapacityError)
