"""The folder of a DeepSeek-V4 target."""

from dataclasses import dataclass
from pathlib import Path

from outrider.config.draft_config import MOST_ROW_NODES
from outrider.config.engine_config import Arithmetic
from outrider.models.any_head import inspect_any_head, load_any_head
from outrider.models.block_depth import BlockDepth
from outrider.models.block_model import AnyBlockModel
from outrider.models.deepseek_v4.inspect_v4 import inspect_v4_dspark, inspect_v4_modules
from outrider.models.deepseek_v4.v4_config import V4Config
from outrider.models.deepseek_v4.v4_decoder import V4Decoder
from outrider.models.deepseek_v4.v4_dspark import V4DSpark, load_v4_dspark
from outrider.models.deepseek_v4.v4_module import V4Module, load_v4_module
from outrider.models.draft_model import AnyDraftModel
from outrider.models.eagle.inspect_head import HeadReport
from outrider.models.mtp.inspect_modules import ModuleReport
from outrider.models.target import AnyTarget
from outrider.ops.linear.choose_linear import WeightType


@dataclass(frozen=True, slots=True, kw_only=True)
class V4Folder:
    """A config, and the folder that it was read from."""

    config: V4Config
    folder: Path

    def inspect_head(self, head: Path) -> HeadReport:
        return inspect_any_head(head, self.config, self.folder)

    def load_head(
        self, head: Path, target: AnyTarget, *, dtype: WeightType, arithmetic: Arithmetic
    ) -> AnyDraftModel | AnyBlockModel:
        assert isinstance(target, V4Decoder), "the decoder of this folder"
        return load_any_head(head, target, self.folder, dtype=dtype, arithmetic=arithmetic)

    def inspect_modules(self) -> ModuleReport:
        if self.config.dspark is not None:
            return inspect_v4_dspark(self.folder, self.config, self.config.dspark)
        return inspect_v4_modules(self.folder, self.config)

    def count_modules(self) -> int:
        return 1  # the first is repeated: each further one would need ring buffers of its own

    def module_depth(self) -> BlockDepth | None:
        if self.config.dspark is None:
            return None
        size = self.config.dspark.block_size
        return BlockDepth(usual=min(size, MOST_ROW_NODES - 1), most=size)

    def load_modules(
        self, target: AnyTarget, *, most: int, dtype: WeightType, arithmetic: Arithmetic
    ) -> V4Module | V4DSpark:
        del most
        assert isinstance(target, V4Decoder), "the decoder of this folder"
        if (dspark := self.config.dspark) is not None:
            return load_v4_dspark(self.folder, dspark, target, dtype=dtype, arithmetic=arithmetic)
        return load_v4_module(self.folder, target, dtype=dtype, arithmetic=arithmetic)
