"""Which keys the nodes of decode rows see, on a CPU: one compiled call for 15 small operations."""

import torch

from outrider.ops.attention.ordered_attention import SeenKeys
from outrider.ops.compiled.seen_keys import NUM_OUTSIDE, fill_decode_keys
from outrider.ops.compiled.thread_team import run_alone
from outrider.ops.graph_break import graph_break
from outrider.ops.tree.plan_rows import DecodeRows

_FUNCTION = int(fill_decode_keys.address)


def fill_seen_keys(
    seen: SeenKeys,  # slots and mask are written
    decode: DecodeRows,
    ancestors: torch.Tensor,  # [rows, nodes] int64
    page_table: torch.Tensor,  # [table_rows, max_pages] int64
    page_size: int,
) -> None:
    """Write the slots of all keys, and 0 or -inf for each node."""
    assert ancestors.stride(1) == 1 == page_table.stride(1)
    graph_break(_fill, seen, decode, ancestors, page_table, page_size)


def _fill(
    seen: SeenKeys,
    decode: DecodeRows,
    ancestors: torch.Tensor,
    page_table: torch.Tensor,
    page_size: int,
) -> None:
    num_pages = min(seen.num_pages, page_table.shape[1])
    sizes = (*seen.mask.shape, page_size, num_pages)
    strides = page_table.shape[0], page_table.stride(0), ancestors.stride(0)
    tensors = decode.rows, decode.lengths, ancestors, page_table, seen.slots, seen.mask
    addresses = [tensor.data_ptr() for tensor in tensors]
    if run_alone(_FUNCTION, (*sizes, *strides, *addresses, 0))[NUM_OUTSIDE]:
        raise IndexError("a row lies outside of the page table")
