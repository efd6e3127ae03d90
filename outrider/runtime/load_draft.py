"""Loads what a target drafts with: nothing, n-grams, its own modules, a head or a whole model."""

import logging
from pathlib import Path

from outrider.config.draft import (
    MTP,
    NGRAM,
    NONE,
    DraftConfig,
    DraftSettings,
    check_fit,
    fit_modules,
    resolve_budget,
)
from outrider.config.engine import Arithmetic, Dtype
from outrider.models.decoder import Decoder
from outrider.models.draft import DraftModel
from outrider.models.heads.inspect import is_head
from outrider.models.heads.loader import load_head
from outrider.models.mtp.inspect import count_modules
from outrider.models.mtp.loader import load_modules
from outrider.models.standalone import load_standalone
from outrider.runtime.drafts import DraftKind, ModelDraft, ModulesDraft, NgramDraft, NoDraft
from outrider.wire.speculation import Budget

_log = logging.getLogger(__name__)


def load_draft(
    config: DraftConfig,
    *,
    target: Decoder,
    target_folder: Path,
    dtype: Dtype,
    arithmetic: Arithmetic,
    max_context: int,
) -> DraftKind:
    """The drafter that was asked for, with trees that fit the target."""
    if config.drafter == MTP:
        num_modules = count_modules(target_folder, target.config)
        config = fit_modules(config, num_modules=num_modules)
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
    folder = Path(draft.drafter)
    load = load_head if is_head(folder) else load_standalone  # the folder itself says which
    model: DraftModel = load(
        folder,
        target=target,
        target_folder=target_folder,
        dtype=dtype,
        device=target.embedding.device,
        arithmetic=arithmetic,
    )
    check_fit(draft, vocab_size=model.target_ids.shape[0], max_context=max_context)
    return ModelDraft(model=model, budget=budget, is_adaptive=draft.adaptive)


def _own_modules(
    draft: DraftSettings,
    budget: Budget,
    target: Decoder,
    target_folder: Path,
    dtype: Dtype,
    arithmetic: Arithmetic,
) -> DraftKind:
    """The target's own modules: no more of them than the tree is deep, and one repeated alone."""
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
