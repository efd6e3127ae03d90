"""The slots of a draft block as a tree: each is one position after the slot before."""

import torch

from outrider.ops.tree.draft_tree import DraftTree


def block_slots(
    anchors: torch.Tensor,  # [rows] int64: slot 0
    size: int,
    *,
    mask_token: int,  # of the other slots
    is_causal: bool,  # a slot reads no later slots
) -> DraftTree:  # [rows, size]
    """Slot 0 has the last token. The others are masks."""
    depths = torch.arange(size, device=anchors.device)
    all_bits = (1 << size) - 1 if size < 64 else -1
    # Bits 0 to d: all bits, but those from d + 1 on. A shift by 64 would change nothing.
    seen = ~(-2 << depths) if is_causal else torch.full_like(depths, all_bits)
    rows = anchors.shape[0]
    tokens = torch.cat([anchors[:, None], anchors.new_full((rows, size - 1), mask_token)], dim=1)
    shape = rows, size
    return DraftTree(
        tokens=tokens,
        parents=(depths - 1).expand(shape).contiguous(),
        depths=depths.expand(shape).contiguous(),
        ancestors=seen.expand(shape).contiguous(),
    )
