"""What the deciding half may ask about a target and what drafts for it, without loading any."""

from pathlib import Path

from outrider.models.deepseek_v4.inspect_v4 import inspect_v4_modules
from outrider.models.deepseek_v4.v4_config import V4Config
from outrider.models.eagle.inspect_head import (
    HeadReport,
    inspect_head,
    needs_one_stream,
    unknown_head,
)
from outrider.models.mtp.inspect_modules import ModuleReport, inspect_modules
from outrider.models.target import read_target
from outrider.runtime.target_cache import has_row_state

__all__ = ["HeadReport", "ModuleReport", "checks_trees", "examine_head", "examine_modules"]


def examine_head(folder: Path, target_folder: Path) -> HeadReport:
    """The report on a head for the model in a folder."""
    config = read_target(target_folder)
    if isinstance(config, V4Config):
        return unknown_head(needs_one_stream(folder))
    return inspect_head(folder, config, target_folder)


def examine_modules(target_folder: Path) -> ModuleReport:
    """The report on the draft modules inside the model in a folder."""
    config = read_target(target_folder)
    if isinstance(config, V4Config):
        return inspect_v4_modules(target_folder, config)
    return inspect_modules(target_folder, config)


def checks_trees(target_folder: Path) -> bool:
    """Whether the model in a folder can check trees; else drafts must be chains."""
    return not has_row_state(read_target(target_folder))
