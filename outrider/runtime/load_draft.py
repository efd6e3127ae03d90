"""Loads what a target drafts with: nothing, n-grams, its own modules, a head or a whole model."""

import logging
from pathlib import Path

from outrider.config.draft_config import (
    MTP,
    NGRAM,
    NONE,
    DraftConfig,
    DraftSettings,
    check_fit,
    fit_modules,
    resolve_budget,
)
from outrider.config.engine_config import Arithmetic, Dtype
from outrider.errors import ConfigError
from outrider.models.decoder import Decoder
from outrider.models.deepseek_v4.v4_config import V4Config
from outrider.models.deepseek_v4.v4_decoder import V4Decoder
from outrider.models.deepseek_v4.v4_module import load_v4_module
from outrider.models.draft_model import DraftModel
from outrider.models.eagle.head_loader import load_head
from outrider.models.eagle.inspect_head import is_head, needs_one_stream
from outrider.models.mtp.inspect_modules import count_modules
from outrider.models.mtp.module_loader import load_modules
from outrider.models.standalone_draft import load_standalone
from outrider.models.target import Target, read_target
from outrider.runtime.draft_kinds import DraftKind, ModelDraft, ModulesDraft, NgramDraft, NoDraft
from outrider.runtime.stream_draft import StreamDraft
from outrider.wire.draft_budget import Budget

_log = logging.getLogger(__name__)


def fit_draft(config: DraftConfig, folder: Path) -> DraftConfig:
    """The sizes of trees that the modules of a target can draft, before anything is loaded.

    Steps get room by these sizes, so this comes before everything else that reads them.
    """
    if config.drafter != MTP:
        return config
    target = read_target(folder)
    if isinstance(target, V4Config):
        return config  # its first module is repeated: further ones would need rings of their own
    return fit_modules(config, num_modules=count_modules(folder, target))


def load_draft(
    config: DraftConfig,  # as `fit_draft` returns it
    *,
    target: Target,
    target_folder: Path,
    dtype: Dtype,
    arithmetic: Arithmetic,
    max_context: int,
) -> DraftKind:
    """The drafter that was asked for, with trees that fit the target."""
    draft = resolve_budget(config)
    for note in draft.notes:
        _log.warning("note: %s", note)
    check_fit(draft, vocab_size=target.config.vocab_size, max_context=max_context)
    if draft.drafter == NONE:
        return NoDraft()
    budget = Budget(steps=draft.tree.steps, topk=draft.tree.topk, nodes=draft.tree.nodes)
    if draft.drafter == NGRAM:
        match = draft.match
        return NgramDraft(
            budget=budget,
            min_match=match.min,
            max_match=match.max,
            is_adaptive=draft.adaptive,
        )
    if draft.drafter == MTP:
        return _own_modules(draft, budget, target, target_folder, dtype, arithmetic)
    model = _load_model(
        Path(draft.drafter), target, target_folder, dtype=dtype, arithmetic=arithmetic
    )
    check_fit(draft, vocab_size=model.target_ids.shape[0], max_context=max_context)
    return ModelDraft(model=model, budget=budget, is_adaptive=draft.adaptive)


def _load_model(
    folder: Path, target: Target, target_folder: Path, *, dtype: Dtype, arithmetic: Arithmetic
) -> DraftModel:
    """A head or a whole model: the folder itself says which."""
    device = target.embedding.device
    if not is_head(folder):
        return load_standalone(
            folder,
            target=target,
            target_folder=target_folder,
            dtype=dtype,
            device=device,
            arithmetic=arithmetic,
        )
    if not isinstance(target, Decoder):
        raise ConfigError(needs_one_stream(folder))
    return load_head(
        folder,
        target=target,
        target_folder=target_folder,
        dtype=dtype,
        device=device,
        arithmetic=arithmetic,
    )


def _own_modules(
    draft: DraftSettings,
    budget: Budget,
    target: Target,
    target_folder: Path,
    dtype: Dtype,
    arithmetic: Arithmetic,
) -> DraftKind:
    """The target's own modules: no more of them than the tree is deep, and one repeated alone."""
    if isinstance(target, V4Decoder):
        module = load_v4_module(target_folder, target, dtype=dtype, arithmetic=arithmetic)
        return StreamDraft(model=module, budget=budget, is_adaptive=draft.adaptive)
    assert isinstance(target, Decoder), "the other kind of target whose modules can be counted"
    modules = load_modules(
        target_folder,
        target=target,
        most=max(budget.steps, 1),
        dtype=dtype,
        arithmetic=arithmetic,
    )
    if len(modules) > 1:
        return ModulesDraft(modules=modules, budget=budget, is_adaptive=draft.adaptive)
    if budget.steps > 1:
        _log.info("one draft module is run %d times, as it was not trained to be", budget.steps)
    return ModelDraft(model=modules, budget=budget, is_adaptive=draft.adaptive)
