"""Reports on draft heads of every kind, and loads them, for any target."""

from pathlib import Path

from outrider.config.engine_config import Arithmetic
from outrider.models.block_model import AnyBlockModel
from outrider.models.draft_model import AnyDraftModel
from outrider.models.eagle.head_loader import load_head
from outrider.models.eagle.inspect_head import HeadReport, inspect_head
from outrider.models.head_target import HeadTarget, HeadTargetConfig
from outrider.models.medusa.inspect_medusa import inspect_medusa, is_medusa
from outrider.models.medusa.medusa_loader import load_medusa
from outrider.ops.linear.choose_linear import WeightType


def inspect_any_head(head: Path, target: HeadTargetConfig, target_folder: Path) -> HeadReport:
    """The report on the head in a folder. A bad head gives problems, not an exception."""
    inspect = inspect_medusa if is_medusa(head) else inspect_head
    return inspect(head, target, target_folder)


def load_any_head(
    head: Path,
    target: HeadTarget,
    target_folder: Path,
    *,
    dtype: WeightType,
    arithmetic: Arithmetic,
) -> AnyDraftModel | AnyBlockModel:
    """The head in a folder, for a target."""
    if is_medusa(head):
        return load_medusa(
            head, target=target, target_folder=target_folder, dtype=dtype, arithmetic=arithmetic
        )
    return load_head(
        head,
        target=target,
        target_folder=target_folder,
        dtype=dtype,
        device=target.embedding.device,
        arithmetic=arithmetic,
    )
