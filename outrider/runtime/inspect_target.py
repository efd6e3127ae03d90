"""Reports on a target and on its drafters for the deciding half, without loading weights."""

from pathlib import Path

from outrider.models.eagle.inspect_head import HeadReport
from outrider.models.mtp.inspect_modules import ModuleReport
from outrider.models.target_folder import read_folder

__all__ = ["HeadReport", "ModuleReport", "checks_trees", "examine_head", "examine_modules"]


def examine_head(folder: Path, target_folder: Path) -> HeadReport:
    """The report on a head for the model in a folder."""
    return read_folder(target_folder).inspect_head(folder)


def examine_modules(target_folder: Path) -> ModuleReport:
    """The report on the draft modules inside the model in a folder."""
    return read_folder(target_folder).inspect_modules()


def checks_trees(target_folder: Path) -> bool:
    """Whether the model in a folder can verify trees; else drafts must be chains."""
    return not read_folder(target_folder).config.has_row_state
