"""Tiny random models of all families with every drafter that can draft for them, loaded once."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from support import recurrent, recurrent_module, tiny, v4, v4_dspark, v4_module
from support.heads import write_head
from support.model_set import make_models

from outrider.models.any_head import load_any_head
from outrider.models.block_model import BlockModel
from outrider.models.decoder_loader import load_decoder
from outrider.models.mtp.module_chain import ModuleChain
from outrider.models.standalone_draft import StandaloneDraft
from outrider.models.target import load_target
from outrider.models.target_folder import read_folder
from outrider.runtime.draft_kinds import (
    BlockDraft,
    DraftKind,
    ModelDraft,
    ModulesDraft,
    NgramDraft,
    NoDraft,
)
from outrider.wire.draft_budget import Budget

PAGED = (
    *tiny.FAMILIES,
    *tiny.STYLED_FAMILIES,
    *tiny.SPARSE_FAMILIES,
    *tiny.GLM_FAMILIES,
    *tiny.LATENT_FAMILIES,
)
RECURRENT = tuple(recurrent.FAMILIES)
V4, V4_MODULE, V4_DSPARK = "deepseek-v4", "deepseek-v4-module", "deepseek-v4-dspark"
FAMILIES = (*PAGED, *RECURRENT, V4, V4_MODULE, V4_DSPARK)

VOCAB = 67  # of all of them
NUM_MODULES = 3  # where there is one module per depth
CPU = torch.device("cpu")

MakeDraft = Callable[[Budget], DraftKind]


@dataclass(frozen=True)
class LifeModels:
    """A target as transformers runs it and as we load it, and its drafters by name."""

    theirs: Any
    target: Any
    drafts: dict[str, MakeDraft]
    has_row_state: bool  # then drafts are chains


@cache
def life_models(family: str) -> LifeModels:
    """The models of a family, saved to a folder that the campaign deletes."""
    torch.set_num_threads(1)
    root = Path(tempfile.mkdtemp(prefix="models-"))
    return _paged(root, family) if family in PAGED else _with_row_state(root, family)


def _paged(root: Path, family: str) -> LifeModels:
    models = make_models(root, "cpu", family)
    drafts: dict[str, MakeDraft] = {"none": _none, "ngram": _ngram}
    for name in ("twin", "relative", "stranger", "modules", *models.heads):
        drafts[name] = partial(models.draft, name)
    return LifeModels(models.theirs, models.target, drafts, has_row_state=False)


def _with_row_state(root: Path, family: str) -> LifeModels:
    folder = root / "target"
    theirs = _save_target(folder, family)
    target = load_target(folder, dtype="float32", device=CPU)
    tiny.save_tiny("llama", root / "stranger", seed=7)
    stranger = load_decoder(root / "stranger", dtype="float32", device=CPU)
    head = write_head(root / "head", target.config)
    eagle3 = load_any_head(head, target, folder, dtype="float32", arithmetic="fast")
    drafts: dict[str, MakeDraft] = {
        "none": _none,
        "ngram": _ngram,
        "stranger": partial(_model, StandaloneDraft(stranger, target_vocab=VOCAB)),
        "eagle3": partial(_model, eagle3),
    }
    if family != V4:
        modules = read_folder(folder).load_modules(
            target, most=1, dtype="float32", arithmetic="fast"
        )
        drafts["mtp"] = partial(_model, modules)
    return LifeModels(theirs, target, drafts, has_row_state=True)


def _save_target(folder: Path, family: str) -> Any:
    if family == V4:
        return v4.saved_v4(folder)
    if family == V4_MODULE:
        return v4_module.save_with_module(folder).theirs
    if family == V4_DSPARK:
        return v4_dspark.save_with_dspark(folder).theirs
    return recurrent_module.save_with_module(folder, family).theirs


def _none(budget: Budget) -> DraftKind:
    del budget
    return NoDraft()


def _ngram(budget: Budget) -> DraftKind:
    return NgramDraft(budget=budget, min_match=1, max_match=4)


def _model(model: Any, budget: Budget) -> DraftKind:
    if isinstance(model, ModuleChain) and len(model) > 1:
        return ModulesDraft(modules=model, budget=budget)
    if isinstance(model, BlockModel):
        return BlockDraft(model=model, budget=budget)
    return ModelDraft(model=model, budget=budget)
