"""Loads what a target drafts with: nothing, n-grams, its own modules, a head or a whole model."""

import logging
from pathlib import Path

from outrider.config.draft_config import (
    AUTO,
    MTP,
    NGRAM,
    NONE,
    TEXT_DRAFTERS,
    DraftConfig,
    DraftSettings,
    check_fit,
    fit_block,
    fit_modules,
    resolve_budget,
)
from outrider.config.engine_config import Arithmetic, Dtype
from outrider.distributed.rank_group import ONE_RANK, RankGroup
from outrider.models.block_depth import block_depth
from outrider.models.block_model import AnyBlockModel, BlockModel
from outrider.models.config_fields import read_fields
from outrider.models.draft_model import AnyDraftModel
from outrider.models.eagle.inspect_head import is_head
from outrider.models.mtp.module_chain import ModuleChain
from outrider.models.standalone_draft import load_standalone
from outrider.models.target import AnyTarget
from outrider.models.target_folder import read_folder
from outrider.ops.linear.choose_linear import type_of_guesses
from outrider.runtime.draft_kinds import (
    BlockDraft,
    DraftKind,
    MergedDraft,
    ModelDraft,
    ModelKind,
    ModulesDraft,
    NgramDraft,
    NoDraft,
    SuffixDraft,
    merged_budget,
)
from outrider.wire.draft_budget import Budget

_log = logging.getLogger(__name__)


def fit_draft(config: DraftConfig, folder: Path) -> DraftConfig:
    """The config with tree sizes that the target's modules, or a block of a head, can draft.

    Nothing is loaded. Memory is sized by these numbers, so this runs before all that reads them.
    """
    if config.drafter in (NONE, *TEXT_DRAFTERS):
        return config
    if config.drafter == MTP:
        target = read_folder(folder)
        depth = target.module_depth()
        if depth is None:
            return fit_modules(config, num_modules=target.count_modules())
    else:
        depth = block_depth(read_fields(Path(config.drafter)))
    return config if depth is None else fit_block(config, usual=depth.usual, most=depth.most)


def load_draft(
    config: DraftConfig,  # as `fit_draft` returns it
    *,
    target: AnyTarget,
    target_folder: Path,
    dtype: Dtype,
    arithmetic: Arithmetic,
    max_context: int,
    ranks: RankGroup = ONE_RANK,
) -> DraftKind:
    """The requested drafter, with trees that fit the target."""
    draft = resolve_budget(config)
    for note in draft.notes:
        _log.warning("note: %s", note)
    check_fit(draft, vocab_size=target.config.vocab_size, max_context=max_context)
    if draft.drafter == NONE:
        return NoDraft()
    budget = Budget(steps=draft.tree.steps, topk=draft.tree.topk, nodes=draft.tree.nodes)
    if draft.drafter in TEXT_DRAFTERS:
        return _lookup(draft.drafter, draft, budget)
    if draft.drafter == MTP:
        modules = _own_modules(draft, budget, target, target_folder, dtype, arithmetic)
        return _merged(modules, draft, budget)
    device = target.embedding.device
    model = _load_model(
        Path(draft.drafter),
        target,
        target_folder,
        dtype=dtype,
        head_dtype=type_of_guesses(dtype, device) if config.dtype == AUTO else dtype,
        arithmetic=arithmetic,
        ranks=ranks,
        max_context=max_context,
    )
    check_fit(draft, vocab_size=model.target_ids.shape[0], max_context=max_context)
    if isinstance(model, BlockModel):
        kind: ModelKind = BlockDraft(model=model, budget=budget, is_adaptive=draft.adaptive)
    else:
        kind = ModelDraft(model=model, budget=budget, is_adaptive=draft.adaptive)
    return _merged(kind, draft, budget)


def _lookup(name: str, draft: DraftSettings, budget: Budget) -> NgramDraft:
    """A drafter that looks up text."""
    kind = NgramDraft if name == NGRAM else SuffixDraft
    return kind(
        budget=budget,
        min_match=draft.match.min,
        max_match=draft.match.max,
        is_adaptive=draft.adaptive,
    )


def _merged(model: ModelKind, draft: DraftSettings, budget: Budget) -> DraftKind:
    """The drafter, with a lookup in the same tree if one is wanted."""
    if draft.lookup == NONE:
        return model
    return MergedDraft(model=model, lookup=_lookup(draft.lookup, draft, merged_budget(budget)))


def _load_model(
    folder: Path,
    target: AnyTarget,
    target_folder: Path,
    *,
    dtype: Dtype,
    head_dtype: Dtype,
    arithmetic: Arithmetic,
    ranks: RankGroup,
    max_context: int,
) -> AnyDraftModel | AnyBlockModel:
    """A head or a whole model, by the files of the folder."""
    if is_head(folder):
        found = read_folder(target_folder)
        return found.load_head(folder, target, dtype=head_dtype, arithmetic=arithmetic)
    return load_standalone(
        folder,
        target=target,
        target_folder=target_folder,
        dtype=dtype,
        device=target.embedding.device,
        arithmetic=arithmetic,
        ranks=ranks,
        max_context=max_context,
    )


def _own_modules(
    draft: DraftSettings,
    budget: Budget,
    target: AnyTarget,
    target_folder: Path,
    dtype: Dtype,
    arithmetic: Arithmetic,
) -> ModelKind:
    """The target's own modules: one per depth of the tree, or one that is repeated."""
    modules = read_folder(target_folder).load_modules(
        target, most=budget.steps, dtype=dtype, arithmetic=arithmetic
    )
    if isinstance(modules, BlockModel):
        return BlockDraft(model=modules, budget=budget, is_adaptive=draft.adaptive)
    if isinstance(modules, ModuleChain) and len(modules) > 1:
        return ModulesDraft(modules=modules, budget=budget, is_adaptive=draft.adaptive)
    return ModelDraft(model=modules, budget=budget, is_adaptive=draft.adaptive)
