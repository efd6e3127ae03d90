"""A model folder as a target: its config, and the heads and modules that draft for it."""

from pathlib import Path
from typing import Protocol

from outrider.config.engine_config import Arithmetic
from outrider.models.block_depth import BlockDepth
from outrider.models.block_model import AnyBlockModel
from outrider.models.decoder_folder import DecoderFolder
from outrider.models.deepseek_v4.v4_config import V4Config
from outrider.models.deepseek_v4.v4_folder import V4Folder
from outrider.models.draft_model import AnyDraftModel
from outrider.models.eagle.inspect_head import HeadReport
from outrider.models.mtp.inspect_modules import ModuleReport
from outrider.models.mtp.module_chain import ModuleChain
from outrider.models.target import AnyTarget, TargetConfig, read_target
from outrider.ops.linear.choose_linear import WeightType


class TargetFolder(Protocol):
    """The folder of a target. Each kind of decoder has its own."""

    @property
    def config(self) -> TargetConfig: ...

    def inspect_head(self, head: Path) -> HeadReport:
        """The report on a draft head for this target."""
        ...

    def load_head(
        self, head: Path, target: AnyTarget, *, dtype: WeightType, arithmetic: Arithmetic
    ) -> AnyDraftModel | AnyBlockModel:
        """A draft head for this target."""
        ...

    def inspect_modules(self) -> ModuleReport:
        """The report on the draft modules in this folder."""
        ...

    def count_modules(self) -> int:
        """Draft modules that each serve one depth; one is repeated for every depth."""
        ...

    def module_depth(self) -> BlockDepth | None:
        """How deep they draft if they draft a block in one pass; else None."""
        ...

    def load_modules(
        self, target: AnyTarget, *, most: int, dtype: WeightType, arithmetic: Arithmetic
    ) -> ModuleChain | AnyDraftModel | AnyBlockModel:
        """At most so many of the draft modules in this folder; one alone is a draft model."""
        ...


def read_folder(folder: Path) -> TargetFolder:
    """The folder of any supported target."""
    config = read_target(folder)
    if isinstance(config, V4Config):
        return V4Folder(config=config, folder=folder)
    return DecoderFolder(config=config, folder=folder)
