"""Tiny random draft models that draft a block in one pass, each with its reference."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from outrider.models.block_model import AnyBlockModel, BlockModel
from outrider.models.eagle.head_loader import load_head
from outrider.models.medusa.medusa_loader import load_medusa
from outrider.models.standalone_draft import load_standalone
from support.block_heads import BlockOracle, BlockVariant, write_block_head
from support.block_reference import BlockReference
from support.heads import Variant
from support.matrix import Models
from support.medusa_models import MedusaOracle, MedusaVariant, write_medusa
from support.pard_models import PardOracle, write_pard
from support.peagle_heads import PEagleOracle, write_peagle


@dataclass(frozen=True, kw_only=True)
class DFlashCase:
    """DFlash or DSpark."""

    variant: BlockVariant = field(default_factory=BlockVariant)

    @property
    def num_drafts(self) -> int:
        return self.variant.num_drafts

    def load(self, models: Models, folder: Path) -> tuple[Any, BlockReference]:
        weights = write_block_head(folder, models.target.config, self.variant)
        return self.open(models, folder), BlockOracle(models.theirs, self.variant, weights)

    def open(self, models: Models, folder: Path) -> AnyBlockModel:
        return load_any(models, folder)


@dataclass(frozen=True, kw_only=True)
class PEagleCase:
    """P-EAGLE: as many slots as drafts."""

    variant: Variant = field(default_factory=Variant)
    num_layers: int = 2
    num_drafts: int = 4

    def load(self, models: Models, folder: Path) -> tuple[Any, BlockReference]:
        config, num_layers = models.target.config, self.num_layers
        weights = write_peagle(folder, config, self.variant, num_layers=num_layers)
        variant, size = self.variant.complete(config), self.num_drafts
        oracle = PEagleOracle(models.theirs, variant, weights, num_layers=num_layers, size=size)
        return self.open(models, folder), oracle

    def open(self, models: Models, folder: Path) -> AnyBlockModel:
        return load_any(models, folder)


@dataclass(frozen=True, kw_only=True)
class PardCase:
    """PARD: a whole model, as many slots as drafts."""

    num_drafts: int = 4

    def load(self, models: Models, folder: Path) -> tuple[Any, BlockReference]:
        theirs = write_pard(folder)
        return self.open(models, folder), PardOracle(theirs, size=self.num_drafts)

    def open(self, models: Models, folder: Path) -> Any:
        return load_standalone(
            folder,
            target=models.target,
            target_folder=models.folder,
            dtype="float32",
            device=torch.device("cpu"),
        )


@dataclass(frozen=True, kw_only=True)
class MedusaCase:
    """Medusa: one head for each draft."""

    variant: MedusaVariant = field(default_factory=MedusaVariant)

    @property
    def num_drafts(self) -> int:
        return self.variant.num_heads

    def load(self, models: Models, folder: Path) -> tuple[Any, BlockReference]:
        weights = write_medusa(folder, models.target.config, self.variant)
        return self.open(models, folder), MedusaOracle(models.theirs, self.variant, weights)

    def open(self, models: Models, folder: Path) -> Any:
        target, target_folder = models.target, models.folder
        return load_medusa(folder, target=target, target_folder=target_folder, dtype="float32")


def load_any(models: Models, folder: Path) -> AnyBlockModel:
    """The head of a folder, for the target."""
    head = load_head(
        folder,
        target=models.target,
        target_folder=models.folder,
        dtype="float32",
        device=torch.device("cpu"),
    )
    assert isinstance(head, BlockModel)
    return head
