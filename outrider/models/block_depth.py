"""What a draft model is and how deep it drafts a block, from its config.json alone."""

from dataclasses import dataclass
from typing import Any

from outrider.config.draft_config import MAX_NODES
from outrider.models.dflash.dflash_dialects import count_drafts, is_dflash_config, read_algorithm
from outrider.models.eagle.peagle_fields import is_peagle_config, usual_drafts
from outrider.models.medusa.medusa_fields import count_heads, is_medusa_config
from outrider.models.pard_draft import MOST_DRAFTS, USUAL_DRAFTS, is_pard_config


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockDepth:
    """Drafts of one pass."""

    usual: int  # unless sizes are given
    most: int


def block_depth(fields: dict[str, Any]) -> BlockDepth | None:
    """The depth of the model of a config.json, or None if it does not draft in blocks."""
    if is_dflash_config(fields):
        num_drafts = count_drafts(fields)
        return BlockDepth(usual=num_drafts, most=num_drafts)
    if is_peagle_config(fields):
        return BlockDepth(usual=usual_drafts(fields), most=MAX_NODES - 1)
    if is_medusa_config(fields):
        return BlockDepth(usual=count_heads(fields), most=count_heads(fields))
    if is_pard_config(fields):
        return BlockDepth(usual=USUAL_DRAFTS, most=MOST_DRAFTS)
    return None


def head_kind(fields: dict[str, Any]) -> str:
    """The kind of a head; EAGLE-3 where its config.json says nothing else."""
    if is_dflash_config(fields):
        return read_algorithm(fields)
    if is_peagle_config(fields):
        return "peagle"
    return "medusa" if is_medusa_config(fields) else "eagle3"
