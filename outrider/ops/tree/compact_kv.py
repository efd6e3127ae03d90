"""The KV of accepted nodes, moved to the positions that follow a row's history."""

import torch

from outrider.ops.compiled.why_not_compiled import is_compiled
from outrider.ops.tree.draft_tree import VerifyResult
from outrider.ops.tree.plan_rows import DecodeRows, page_slots

_COMPILED = "outrider.ops.compiled.moved_kv"


def compact_kv(
    storage: torch.Tensor,  # [layers, pages, page_size, vectors, width], contiguous; written
    decode: DecodeRows,
    verify_result: VerifyResult,
    pages: torch.Tensor,  # [table_rows, max_pages]
) -> None:
    """Move the KV of depth d of each accepted path to position L + d, in all layers."""
    if storage.is_cuda:
        from outrider.ops.tree.compact_kv_triton import compact_kv_triton

        compact_kv_triton(storage, decode, verify_result, pages)
        return
    if is_compiled(storage, _COMPILED):
        from outrider.ops.tree.compact_kv_compiled import compact_kv_compiled, is_in_words

        if is_in_words(storage):
            compact_kv_compiled(storage, decode, verify_result, pages)
            return
    compact_kv_reference(storage, decode, verify_result, pages)


def compact_kv_reference(
    storage: torch.Tensor, decode: DecodeRows, verify_result: VerifyResult, pages: torch.Tensor
) -> None:
    """The same in plain torch.

    A parent has a lower index than its children, so reading all before writing suffices.
    """
    page_size, path = storage.shape[2], verify_result.path
    rows, lengths = decode.rows[:, None].expand_as(path), decode.lengths[:, None]
    depth = torch.arange(path.shape[1], device=lengths.device)
    is_accepted = depth <= verify_result.num_accepted[:, None]
    source = page_slots(pages, rows, lengths + path, page_size)
    goal = page_slots(pages, rows, lengths + depth, page_size)
    goal = torch.where(is_accepted, goal, source)  # rejected nodes stay where they are
    for layer in storage.unbind(0):
        slots = layer.view(-1, *layer.shape[2:])
        slots.index_copy_(0, goal.flatten(), slots.index_select(0, source.flatten()))
