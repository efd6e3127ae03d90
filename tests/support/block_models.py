"""Tiny random draft models that draft a block in one pass, each with its reference."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from outrider.models.block_model import BlockModel
from outrider.models.eagle.head_loader import load_head
from outrider.models.medusa.medusa_loader import load_medusa
from outrider.models.standalone_draft import load_standalone
from support.block_heads import BlockOracle, BlockVariant, write_block_head
from support.heads import Variant
from support.matrix import Models
from support.medusa_models import MedusaOracle, MedusaVariant, write_medusa
from support.pard_models import PardOracle, write_pard
from support.peagle_heads import PEagleOracle, write_peagle


class BlockReference(Protocol):
    """Recomputes a block over the whole text, without cache, pages or engine code."""

    def chain(self, tokens: list[int], steps: int) -> list[int]: ...

    def run_block(self, tokens: list[int]) -> torch.Tensor: ...  # [slots, width]


@dataclass(frozen=True, kw_only=True)
class DFlashCase:
    """DFlash or DSpark."""

    variant: BlockVariant = field(default_factory=BlockVariant)

    @property
    def num_drafts(self) -> int:
        return self.variant.num_drafts

    def load(self, models: Models, folder: Path) -> tuple[Any, BlockReference]:
        weights = write_block_head(folder, models.target.config, self.variant)
        return load_any(models, folder), BlockOracle(models.theirs, self.variant, weights)


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
        return load_any(models, folder), oracle


@dataclass(frozen=True, kw_only=True)
class PardCase:
    """PARD: a whole model, as many slots as drafts."""

    num_drafts: int = 4

    def load(self, models: Models, folder: Path) -> tuple[Any, BlockReference]:
        theirs = write_pard(folder)
        model = load_standalone(
            folder,
            target=models.target,
            target_folder=models.folder,
            dtype="float32",
            device=torch.device("cpu"),
        )
        return model, PardOracle(theirs, size=self.num_drafts)


@dataclass(frozen=True, kw_only=True)
class MedusaCase:
    """Medusa: one head for each draft."""

    variant: MedusaVariant = field(default_factory=MedusaVariant)

    @property
    def num_drafts(self) -> int:
        return self.variant.num_heads

    def load(self, models: Models, folder: Path) -> tuple[Any, BlockReference]:
        weights = write_medusa(folder, models.target.config, self.variant)
        target, target_folder = models.target, models.folder
        model = load_medusa(folder, target=target, target_folder=target_folder, dtype="float32")
        return model, MedusaOracle(models.theirs, self.variant, weights)


def load_any(models: Models, folder: Path) -> BlockModel:
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
