"""What the deciding half may ask about a draft head without loading any model."""

from pathlib import Path

from outrider.models.config import read_config
from outrider.models.heads.inspect import HeadReport, inspect_head

__all__ = ["HeadReport", "examine_head"]


def examine_head(folder: Path, target_folder: Path) -> HeadReport:
    """The report on a head for the model in a folder."""
    return inspect_head(folder, read_config(target_folder), target_folder)
