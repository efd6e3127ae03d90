"""The folder of a DeepSeek-V4 target."""

from dataclasses import dataclass
from pathlib import Path

from outrider.config.engine_config import Arithmetic
from outrider.errors import ConfigError
from outrider.models.block_model import BlockModel
from outrider.models.deepseek_v4.inspect_v4 import inspect_v4_modules
from outrider.models.deepseek_v4.v4_config import V4Config
from outrider.models.deepseek_v4.v4_decoder import V4Decoder
from outrider.models.deepseek_v4.v4_module import V4Module, load_v4_module
from outrider.models.draft_model import AnyDraftModel
from outrider.models.eagle.inspect_head import HeadReport, needs_one_stream, unknown_head
from outrider.models.mtp.inspect_modules import ModuleReport
from outrider.models.target import AnyTarget
from outrider.ops.linear.choose_linear import WeightType


@dataclass(frozen=True, slots=True, kw_only=True)
class V4Folder:
    """A config, and the folder that it was read from."""

    config: V4Config
    folder: Path

    def inspect_head(self, head: Path) -> HeadReport:
        return unknown_head(needs_one_stream(head))

    def load_head(
        self, head: Path, target: AnyTarget, *, dtype: WeightType, arithmetic: Arithmetic
    ) -> AnyDraftModel | BlockModel:
        del target, dtype, arithmetic
        raise ConfigError(needs_one_stream(head))

    def inspect_modules(self) -> ModuleReport:
        return inspect_v4_modules(self.folder, self.config)

    def count_modules(self) -> int:
        return 1  # the first is repeated: each further one would need ring buffers of its own

    def load_modules(
        self, target: AnyTarget, *, most: int, dtype: WeightType, arithmetic: Arithmetic
    ) -> V4Module:
        del most
        assert isinstance(target, V4Decoder), "the decoder of this folder"
        return load_v4_module(self.folder, target, dtype=dtype, arithmetic=arithmetic)
