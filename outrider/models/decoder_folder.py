"""The folder of a target that the shared decoder runs."""

import logging
from dataclasses import dataclass
from pathlib import Path

from outrider.config.engine_config import Arithmetic
from outrider.models.any_head import inspect_any_head, load_any_head
from outrider.models.block_depth import BlockDepth
from outrider.models.block_model import AnyBlockModel
from outrider.models.decoder import Decoder
from outrider.models.draft_model import AnyDraftModel
from outrider.models.eagle.inspect_head import HeadReport
from outrider.models.model_config import ModelConfig
from outrider.models.mtp.inspect_modules import ModuleReport, count_modules, inspect_modules
from outrider.models.mtp.module_chain import ModuleChain
from outrider.models.mtp.module_loader import load_modules
from outrider.models.target import AnyTarget
from outrider.ops.linear.choose_linear import WeightType

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderFolder:
    """A config, and the folder that it was read from."""

    config: ModelConfig
    folder: Path

    def inspect_head(self, head: Path) -> HeadReport:
        return inspect_any_head(head, self.config, self.folder)

    def load_head(
        self, head: Path, target: AnyTarget, *, dtype: WeightType, arithmetic: Arithmetic
    ) -> AnyDraftModel | AnyBlockModel:
        assert isinstance(target, Decoder), "the decoder of this folder"
        return load_any_head(head, target, self.folder, dtype=dtype, arithmetic=arithmetic)

    def inspect_modules(self) -> ModuleReport:
        return inspect_modules(self.folder, self.config)

    def count_modules(self) -> int:
        return count_modules(self.folder, self.config)

    def module_depth(self) -> BlockDepth | None:
        return None

    def load_modules(
        self, target: AnyTarget, *, most: int, dtype: WeightType, arithmetic: Arithmetic
    ) -> ModuleChain:
        assert isinstance(target, Decoder), "the decoder of this folder"
        modules = load_modules(
            self.folder, target=target, most=max(most, 1), dtype=dtype, arithmetic=arithmetic
        )
        if len(modules) == 1 and most > 1:
            _log.info("one draft module is run %d times, as it was not trained to be", most)
        return modules
