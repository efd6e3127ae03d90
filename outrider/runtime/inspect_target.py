"""Reports on a target and on its drafters for the deciding half, without loading weights."""

from pathlib import Path

from outrider.errors import ConfigError
from outrider.models.block_depth import block_depth
from outrider.models.config_fields import read_fields
from outrider.models.eagle.inspect_head import HeadReport, is_head
from outrider.models.inspect_standalone import inspect_standalone
from outrider.models.mtp.inspect_modules import ModuleReport
from outrider.models.target_folder import read_folder

__all__ = [
    "HeadReport",
    "ModuleReport",
    "checks_trees",
    "examine_head",
    "examine_modules",
    "fitting_module_steps",
    "fitting_steps",
]


def examine_head(folder: Path, target_folder: Path) -> HeadReport:
    """The report on a head, or on a whole draft model, for the model in a folder."""
    target = read_folder(target_folder)
    if _is_whole_model(folder):
        return inspect_standalone(folder, target.config, target_folder)
    return target.inspect_head(folder)


def _is_whole_model(folder: Path) -> bool:
    """Whether a folder is no head. What cannot be read is reported as a head."""
    try:
        return not is_head(folder)
    except ConfigError:
        return False


def fitting_steps(folder: Path, most: int) -> int:
    """The steps that the draft model of a folder can draft, at most so many."""
    depth = block_depth(read_fields(folder))
    return most if depth is None else min(most, depth.most)


def fitting_module_steps(target_folder: Path, most: int) -> int:
    """The steps that the modules inside a model can draft; a repeated one at most so many."""
    target = read_folder(target_folder)
    depth, num = target.module_depth(), target.count_modules()
    if depth is not None:
        return min(most, depth.most)
    return num if num > 1 else most


def examine_modules(target_folder: Path) -> ModuleReport:
    """The report on the draft modules inside the model in a folder."""
    return read_folder(target_folder).inspect_modules()


def checks_trees(target_folder: Path) -> bool:
    """Whether the model in a folder can verify trees; else drafts must be chains."""
    return not read_folder(target_folder).config.has_row_state
