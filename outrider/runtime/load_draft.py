"""Loads what a target drafts with: nothing, an n-gram lookup, a draft head or a whole model."""

import logging
from pathlib import Path

from outrider.config.draft import (
    NGRAM,
    NONE,
    DraftConfig,
    check_fit,
    resolve_budget,
)
from outrider.config.engine import Arithmetic, Dtype
from outrider.errors import ConfigError
from outrider.models.decoder import Decoder
from outrider.models.draft import DraftModel
from outrider.models.heads.inspect import is_head
from outrider.models.heads.loader import load_head
from outrider.models.standalone import load_standalone
from outrider.models.target import Target
from outrider.runtime.drafts import DraftKind, ModelDraft, NgramDraft, NoDraft
from outrider.wire.speculation import Budget

_log = logging.getLogger(__name__)


def load_draft(
    config: DraftConfig,
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
        raise ConfigError(
            f"{folder} is a draft head, which reads one residual stream, and this target has "
            "several; use --draft ngram or a whole model"
        )
    return load_head(
        folder,
        target=target,
        target_folder=target_folder,
        dtype=dtype,
        device=device,
        arithmetic=arithmetic,
    )
