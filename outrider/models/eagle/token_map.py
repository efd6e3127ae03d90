"""The token map from the draft vocabulary to the target's vocabulary, and its checks."""

from collections.abc import Iterator, Mapping

import torch

from outrider.models.eagle.head_config import OutputConfig
from outrider.models.eagle.head_tensors import TO_DRAFT, TO_TARGET


def target_ids(
    tensors: Mapping[str, torch.Tensor], output: OutputConfig
) -> torch.Tensor:  # [draft_vocab] int64
    """The target's id of each token that the head can propose."""
    ids = torch.arange(output.draft_vocab)
    return ids + tensors[TO_TARGET].long() if TO_TARGET in tensors else ids


def token_map_faults(tensors: Mapping[str, torch.Tensor], output: OutputConfig) -> Iterator[str]:
    """The faults of a token map whose tensors have the right shapes."""
    if TO_TARGET in tensors and not _is_integer(tensors[TO_TARGET]):
        yield f"{TO_TARGET} is {tensors[TO_TARGET].dtype}; it must hold integers"
        return
    ids = target_ids(tensors, output)
    if bool((ids < 0).any() | (ids >= output.vocab).any()):
        yield (
            f"{TO_TARGET} leads outside the target's {output.vocab} tokens; "
            "use the map that was saved with this head"
        )
        return
    if bool((ids.diff() <= 0).any()):
        yield (
            f"{TO_TARGET} does not lead to strictly increasing tokens; it must hold offsets, "
            "target id = draft id + offset, of sorted tokens"
        )
    can_draft = torch.zeros(output.vocab, dtype=torch.bool).index_fill(0, ids, True)
    if TO_DRAFT in tensors and not torch.equal(tensors[TO_DRAFT].bool(), can_draft):
        yield (
            f"{TO_DRAFT} and {TO_TARGET} name different tokens; "
            "use the maps that were saved with this head"
        )


def _is_integer(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and tensor.dtype != torch.bool
